"""What tells residual streams apart from one stream, and the manifold from free mixing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.kernels.streams import written
from resjax.testing import toy
from resjax.testing.compare import assert_close, norm, relative_errors

LAYERS, X = toy.layers(), jnp.asarray(toy.embeddings())
constrained = pytest.mark.parametrize("name", ["mhc", "mhc_lite"])


def mixes(made):
  """M [R, R, B, T] of every sublayer but the first, which mixes copies, on a run's own streams."""
  return [np.float64(mix) for mix in _mixes(*nnx.split(made))]


@functools.partial(jax.jit, static_argnums=0)
def _mixes(graphdef, state):
  made = nnx.merge(graphdef, state)
  states = list(toy.states_by_hand(made, LAYERS, X))
  places = [(layer, site) for layer in range(made.num_layers) for site in made.sites]
  return [
    made.coefficients(state, *place)[1]
    for state, place in zip(states[1:], places[1:], strict=False)
  ]


@constrained
def test_the_logits_of_a_mix_of_copies_get_no_gradient(name):
  """At the first site they have no effect; rounding errors would be all that they learn."""
  made = toy.build(name, {"num_streams": 3})
  logits = np.linspace(-1.0, 1.0, made.bias.shape[-1], dtype=np.float32)[:, None]

  @jax.jit
  @jax.grad
  def gradient(logits, copies):
    read, mix, write = made.gates(logits, jnp.zeros_like(logits), jnp.ones(3), copies)
    return jnp.sum(read) + jnp.sum(mix**2) + jnp.sum(write)

  dead, alive = (np.asarray(gradient(logits, np.float32([copies]))) for copies in (1.0, 0.0))
  assert_close(dead[:6], alive[:6], 1e-6)
  assert not dead[6:].any() and alive[6:].all()


def largest_gain(matrices):
  """Largest absolute row or column sum of the product over depth (the mHC paper's gain)."""
  product = np.broadcast_to(np.eye(len(matrices[0]))[..., None, None], matrices[0].shape)
  for matrix in matrices:
    product = np.einsum("ij...,jk...->ik...", matrix, product)
  return max(np.abs(product).sum(axis=axis).max() for axis in (0, 1))


@constrained
@pytest.mark.parametrize("num_streams", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_rows_and_columns_sum_to_one(name, num_streams):
  made = toy.build(name, {"num_streams": num_streams}, num_layers=2)
  made.scale[...] *= 0.1  # 20 iterations are enough for logits of about 1, not for any
  tolerance = {"mhc": 1e-3, "mhc_lite": 1e-6}[name]  # columns of Sinkhorn converge, rows are last
  for mix in mixes(made):
    assert (mix >= 0).all()
    assert np.ptp(mix, axis=(2, 3)).max() > 1e-4  # depends on the token
    np.testing.assert_allclose(mix.sum(axis=1), 1, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mix.sum(axis=0), 1, rtol=0, atol=tolerance)


@pytest.mark.parametrize("constraint, one, free", [("rows", 1, 0), ("columns", 0, 1)])
def test_one_side_alone_sums_to_one(constraint, one, free):
  mix, *_ = mixes(toy.build("mhc", {"constraint": constraint, "num_streams": 3}, num_layers=2))
  np.testing.assert_allclose(mix.sum(axis=one), 1, rtol=0, atol=1e-6)
  assert np.abs(mix.sum(axis=free) - 1).max() > 0.1


def test_a_fresh_mix_whose_columns_sum_to_one_keeps_copies():
  options = {"constraint": "columns", "num_streams": 3}
  mix, *_ = mixes(toy.build("mhc", options, num_layers=2, random=False))
  np.testing.assert_allclose(mix.sum(axis=1), 1, rtol=0, atol=1e-6)


@constrained
@pytest.mark.slow
def test_gain_over_the_depth_is_bounded_where_that_of_free_mixing_grows(name):
  assert 1 - 1e-2 < largest_gain(mixes(toy.build(name, {}))) < 1 + 1e-2
  free = mixes(toy.build("hyper_connections", {}))
  assert largest_gain(free) > 2 * largest_gain(free[: len(free) // 2]) > 4


def test_sinkhorn_survives_logits_whose_exponential_overflows():
  made = toy.build("mhc", {}, num_layers=2, random=False)
  bias = np.array(made.bias[...])
  bias[..., 8:] = 200.0 * np.eye(4).reshape(-1)
  made.bias[...] = bias
  for mix in mixes(made):
    np.testing.assert_allclose(mix, np.broadcast_to(np.eye(4)[..., None, None], mix.shape), 1e-5)


@pytest.mark.slow
def test_released_form_without_eps_is_that_of_the_paper():
  exact, almost = (toy.build("mhc", {"gate_eps": eps}, num_layers=2) for eps in (0.0, 1e-12))
  got, want = (toy.compiled_by_hand(made, LAYERS, X) for made in (almost, exact))
  assert_close(got, want, 1e-6)


@pytest.mark.slow
def test_independent_streams_are_mhc_whose_mix_is_the_identity():
  options = {"gate_eps": 0.0, "head": "sum"}
  made = toy.build("independent_hc", options, num_layers=2)
  mhc = toy.build("mhc", {}, num_layers=2)
  mhc.projection[...] = mhc.projection[...].at[..., :8].set(made.projection[...]).at[..., 8:].set(0)
  logits = jnp.broadcast_to(200.0 * jnp.eye(4).reshape(-1), (2, 2, 16))
  mhc.bias[...] = jnp.concatenate([made.bias[...], logits], axis=-1)
  mhc.scale[...] = mhc.scale[...].at[..., :2].set(made.scale[...])
  assert_close(toy.compiled_by_hand(made, LAYERS, X), toy.compiled_by_hand(mhc, LAYERS, X), 1e-6)
  assert all(made.coefficients(s, 0, "mlp")[1] is None for s in toy.states_by_hand(made, LAYERS, X))


@constrained
def test_one_stream_mixes_nothing(name):
  assert all((mix == 1).all() for mix in mixes(toy.build(name, {"num_streams": 1}, num_layers=2)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_stream_whose_output_gain_alone_has_moved_is_a_scaled_add(dynamic):
  made = toy.build("hyper_connections", {"num_streams": 1, "dynamic": dynamic}, random=False)
  made.beta[...] = made.beta[...] * 0.7
  layers = {site: {**p, "down": 0.7 * p["down"]} for site, p in LAYERS.items()}
  want = toy.compiled_by_hand(toy.build("standard", {}), layers, X)
  assert_close(toy.compiled_by_hand(made, LAYERS, X), want, 1e-6)


@pytest.mark.parametrize(
  "name, options",
  [
    ("hyper_connections", {}),
    ("hyper_connections", {"dynamic": False}),
    ("mhc", {}),
    ("mhc", {"init": "identity"}),
    ("mhc", {"init": "home_stream"}),
    ("mhc", {"constraint": "rows"}),
    ("mhc", {"constraint": "columns"}),
    ("mhc", {"read_site": "previous", "head": "previous", "sinkhorn_iterations": 2}),
    ("mhc_lite", {}),
    ("mhc_lite", {"init": "identity"}),
    ("independent_hc", {}),
    ("independent_hc", {"init": "home_stream"}),
  ],
)
@pytest.mark.slow
def test_streams_are_equal_at_init_and_part_with_the_first_update(name, options):
  made = toy.build(name, options, num_layers=2, random=False)
  assert spread(made) < 1e-6
  _, (gradients, _, _) = toy.jitted(toy.run, made, toy.layers(made.num_layers), X)
  state = nnx.state(made)
  moved = jax.tree.map(lambda p, g: p - g, nnx.to_pure_dict(state), gradients)
  nnx.replace_by_pure_dict(state, moved)
  nnx.update(made, state)
  assert spread(made) > 1e-4


def spread(made):
  """Largest distance of a stream from their mean before the last site, relative to the mean."""
  streams = np.asarray(_streams(*nnx.split(made)))
  mean = streams.mean(axis=0)
  return max(norm(stream - mean) for stream in streams) / norm(mean)


@functools.partial(jax.jit, static_argnums=0)
def _streams(graphdef, state):
  return written([*toy.states_by_hand(nnx.merge(graphdef, state), LAYERS, X)][-2])


def test_home_streams_are_those_of_pull_request_1849():
  made = toy.build("mhc", {"init": "home_stream"}, num_layers=3, random=False)
  params = toy.parameters(made)
  assert (params["projection"] == 0).all() and (params["scale"] == np.float32(0.01)).all()
  for sublayer, bias in enumerate(params["bias"].reshape(6, 24)):
    np.testing.assert_array_equal(bias[:4], [3 if s == sublayer % 4 else -3 for s in range(4)])
    np.testing.assert_array_equal(bias[4:8], 0)
    np.testing.assert_array_equal(bias[8:].reshape(4, 4), 6 * np.eye(4) - 3)


@pytest.mark.slow
def test_fresh_mhc_of_other_inits_mix_differently_and_agree():
  inits = ("uniform", "identity", "one_hot")
  uniform, identity, one_hot = (
    toy.build("mhc", {"init": init}, num_layers=3, random=False) for init in inits
  )
  assert np.abs(mixes(uniform)[0] - 0.25).max() < 0.02
  assert np.abs(mixes(identity)[0] - np.eye(4)[..., None, None]).max() < 0.01
  want = toy.rms_norm(toy.compiled_by_hand(uniform, LAYERS, X))
  assert_close(toy.rms_norm(toy.compiled_by_hand(identity, LAYERS, X)), want, 1e-4)
  assert relative_errors(toy.rms_norm(toy.compiled_by_hand(one_hot, LAYERS, X)), want)[""] > 1e-2
