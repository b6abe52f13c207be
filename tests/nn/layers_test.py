"""Norms, MLPs, rotary positions, embeddings and linear maps against numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.base.sharding import Layout
from resjax.nn.linear import MLP, Embedding, Linear
from resjax.nn.norm import make_norm
from resjax.nn.rope import Rope, Rotation, rope
from resjax.nn.rope_scaling import RopeScaling
from resjax.testing.compare import assert_close

D, F = 12, 20
X = np.random.default_rng(0).normal(size=(2, 5, D)).astype(np.float32)
rotated = jax.jit(rope, static_argnums=(2, 3))


def randomised(module):
  """The module with every parameter drawn anew, biases and gains too; and numpy copies."""
  rng = np.random.default_rng(1)
  graphdef, state = nnx.split(module)
  state = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype), state)
  return nnx.merge(graphdef, state), jax.tree.map(np.float64, nnx.to_pure_dict(state))


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("positions", [range(7), (0, 1, 2, 0, 1, 0, 1000)])
@pytest.mark.parametrize("theta", [10_000.0, 1e6])
def test_rope_multiplies_complex_numbers(positions, theta, platform):
  x = np.random.default_rng(0).normal(size=(1, 7, 3, 8)).astype(np.float32)
  t = np.array([positions])
  half = np.float64(x[..., :4]) + 1j * np.float64(x[..., 4:])
  angles = t[:, :, None, None] * theta ** (-2.0 * np.arange(4) / 8)
  turned = half * np.exp(1j * angles)
  want = np.concatenate([turned.real, turned.imag], axis=-1)
  got = rotated(x, t, Rotation((Rope(theta),)), platform)
  # A float32 angle is right to eps times itself.
  assert_close(got, want, 1e-6 if t.max() < 10 else 1e-4)


def test_rope_scores_depend_on_the_distance_alone():
  q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 16)).astype(np.float32)

  def score(at, to):
    places = ((q, at), (k, to))
    by = Rotation((Rope(1e4),))
    turned = (np.asarray(rotated(a, np.full((1, 1), t), by, "cpu")) for a, t in places)
    return float(np.sum(next(turned) * next(turned)))

  np.testing.assert_allclose(score(3, 1), score(40, 38), rtol=1e-4)
  assert abs(score(3, 1) - score(3, 2)) > 1e-3


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize(
  "scaling", [RopeScaling(), RopeScaling("linear", 3.0), RopeScaling("llama3", 8.0, 1.0, 4.0, 64)]
)
def test_rope_turns_a_part_of_a_head_by_scaled_angles(scaling, platform):
  x = np.random.default_rng(0).normal(size=(1, 5, 2, 12)).astype(np.float32)
  t = np.array([[0, 1, 2, 3, 30]])
  frequencies = 100.0 ** (-np.arange(4) / 4)
  if scaling.kind == "linear":
    frequencies /= 3
  if scaling.kind == "llama3":  # in wavelengths, as the paper's code has it
    for i, frequency in enumerate(frequencies):
      length = 2 * np.pi / frequency
      if length > 64 / 1.0:
        frequencies[i] = frequency / 8
      elif length >= 64 / 4.0:
        smooth = (64 / length - 1.0) / (4.0 - 1.0)
        frequencies[i] = (1 - smooth) * frequency / 8 + smooth * frequency
    assert len({*frequencies, *100.0 ** (-np.arange(4) / 4)}) > 4
  turned = (x[..., :4] + 1j * x[..., 4:8]) * np.exp(1j * t[:, :, None, None] * frequencies)
  want = np.concatenate([turned.real, turned.imag, x[..., 8:]], axis=-1)
  rotation = Rope(100.0, 0.67, scaling)
  got = np.asarray(rotated(x, t, Rotation((rotation,)), platform))
  assert_close(got, want, 1e-5)
  np.testing.assert_array_equal(got[..., 8:], x[..., 8:])


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rope_on_a_tpu_has_the_values_and_gradients_of_rope_elsewhere(dtype, fraction):
  rng = np.random.default_rng(0)
  x, d = rng.normal(size=(2, 2, 9, 3, 16)).astype(dtype)
  t = rng.integers(0, 2000, size=(2, 9))

  @functools.partial(jax.jit, static_argnums=0)
  def both(platform):
    out, vjp = jax.vjp(lambda x: rope(x, t, Rotation((Rope(1e4, fraction),)), platform), x)
    return out, vjp(d)[0]

  want, got = both("cpu"), both("tpu")
  assert got[0].dtype == got[1].dtype == dtype
  # The turn is exact; compilers may add products to sums with one rounding or with two.
  assert_close(got, want, 2e-7 if dtype == "float32" else 2**-8)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_the_gradient_of_rope_is_that_of_plain_operations(platform):
  rng = np.random.default_rng(0)
  x, d = rng.normal(size=(2, 1, 6, 2, 12)).astype(np.float32)
  t, rotation = np.arange(6)[None], Rope(100.0, 0.67)

  def turns(angles):  # of row vectors, [..., 2, 2], behind an axis for the row
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.stack([jnp.stack([cos, sin], -1), jnp.stack([-sin, cos], -1)], -2)

  def plain(x):
    angles = t[:, :, None, None] * rotation.frequencies(12)
    first, second, rest = jnp.split(x, [4, 8], axis=-1)
    pairs = jnp.einsum("...i,...ij->...j", jnp.stack([first, second], -1), turns(angles))
    return jnp.concatenate([pairs[..., 0], pairs[..., 1], rest], axis=-1)

  @jax.jit
  def gradients(x, d):
    (got,) = jax.vjp(lambda x: rope(x, t, Rotation((rotation,)), platform), x)[1](d)
    (want,) = jax.vjp(plain, x)[1](d)
    return got, want

  assert_close(*gradients(x, d), 1e-6)


def test_rope_on_a_tpu_makes_no_array_of_half_a_head():
  x = jax.ShapeDtypeStruct((1, 8, 2, 64), jnp.bfloat16)

  def both(x):
    out, vjp = jax.vjp(lambda x: rope(x, jnp.arange(8)[None], Rotation((Rope(1e4),)), "tpu"), x)
    return vjp(out)

  text = jax.jit(both).trace(x).lower(lowering_platforms=("tpu",)).as_text()
  assert text.count("dot_general") == 2
  assert "x32x" not in text and "concatenate" not in text


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("bias", [False, True])
def test_layernorm(bias, offset):
  layer = make_norm("layernorm", D, eps=1e-5, bias=bias, dtype="float32", rngs=nnx.Rngs(0))
  layer, p = randomised(layer)
  x = np.float64(X + np.float32(offset))  # what float32 holds
  centred = x - x.mean(-1, keepdims=True)
  want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["scale"]
  want = want + p["bias"] if bias else want
  assert ("bias" in p) == bias
  assert_close(jax.jit(layer)(x.astype(np.float32)), want, 1e-6 + 1e-6 * offset)


def test_rmsnorm():
  layer = make_norm("rmsnorm", D, eps=1e-2, bias=True, dtype="float32", rngs=nnx.Rngs(0))
  layer, p = randomised(layer)
  want = X / np.sqrt((np.float64(X) ** 2).mean(-1, keepdims=True) + 1e-2) * p["scale"]
  assert set(p) == {"scale"}
  assert_close(jax.jit(layer)(X), want, 1e-6)


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_norm_statistics_of_bfloat16_are_float32(name):
  layer = make_norm(name, 4096, eps=1e-6, bias=False, dtype="bfloat16", rngs=nnx.Rngs(0))
  x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4096)), jnp.bfloat16)
  y = layer(x)
  wide = np.float64(x) - (np.float64(x).mean() if name == "layernorm" else 0)
  want = wide / np.sqrt((wide**2).mean())
  assert y.dtype == jnp.bfloat16
  # Normalised, gained and rounded in 16 bits at most three times.
  np.testing.assert_allclose(np.float64(y), want, rtol=3 * 2.0**-8, atol=1e-3)


def mlp(name, bias):
  return MLP(
    name, D, F, bias=bias, std=0.1, out_std=0.1, dtype="float32", layout=Layout(), rngs=nnx.Rngs(0)
  )


def affine(x, p):
  return x @ p["kernel"] + p.get("bias", 0)


@pytest.mark.parametrize("bias", [False, True])
def test_gelu_mlp(bias):
  layer, p = randomised(mlp("gelu", bias))
  u = affine(np.float64(X), p["up_proj"])
  gelu = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
  assert set(p) == {"up_proj", "down_proj"} and ("bias" in p["up_proj"]) == bias
  assert_close(jax.jit(layer)(X), affine(gelu, p["down_proj"]), 1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_swiglu_mlp(bias):
  layer, p = randomised(mlp("swiglu", bias))
  gate, up = (affine(np.float64(X), p[key]) for key in ("gate_proj", "up_proj"))
  hidden = gate / (1 + np.exp(-gate)) * up
  assert_close(jax.jit(layer)(X), affine(hidden, p["down_proj"]), 1e-6)


@pytest.mark.parametrize("max_positions", [0, 9])
def test_embedding(max_positions):
  layer = Embedding(
    11, D, max_positions=max_positions, std=0.5, dtype="float32", layout=Layout(), rngs=nnx.Rngs(0)
  )
  tokens, positions = np.array([[3, 10, 0]]), np.array([[0, 8, 1]])
  want = np.asarray(layer.embedding[...])[tokens]
  if max_positions:
    want = want + np.asarray(layer.positions[...])[positions]
  else:
    assert layer.positions is None
  np.testing.assert_array_equal(jax.jit(layer)(tokens, positions), want)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_map_and_its_gradients(bias):
  made = Linear(
    D, F, ("embed_param", "mlp"), bias=bias, std=1.0, dtype="float32", layout=Layout(),
    rngs=nnx.Rngs(0),
  )  # fmt: skip
  made, params = randomised(made)
  cotangent = np.random.default_rng(2).normal(size=(2, 5, F)).astype(np.float32)
  graphdef, state = nnx.split(made)
  y, vjp = jax.vjp(lambda state, x: nnx.merge(graphdef, state)(x), state, X)
  d_params, d_x = vjp(jnp.asarray(cotangent))
  assert_close(y, X @ params["kernel"] + params.get("bias", 0), 1e-6)
  assert_close(d_x, cotangent @ params["kernel"].T, 1e-6)
  want = {"bias": cotangent.sum(axis=(0, 1))} if bias else {}
  want |= {"kernel": np.einsum("btd,btf->df", X, cotangent)}
  assert_close(nnx.to_pure_dict(d_params), want, 1e-6)


def test_initial_values_have_the_standard_deviation_asked_for():
  rngs = nnx.Rngs(0)
  made = Linear(
    200,
    300,
    ("embed_param", "mlp"),
    bias=True,
    std=0.03,
    dtype="bfloat16",
    layout=Layout(),
    rngs=rngs,
  )
  table = Embedding(
    300, 200, max_positions=300, std=0.03, dtype="bfloat16", layout=Layout(), rngs=rngs
  )
  for parameter in (made.kernel, table.embedding, table.positions):
    values = np.asarray(parameter[...])
    assert values.dtype == np.float32
    error = 1 / np.sqrt(2 * values.size)  # of a standard deviation, relative
    assert abs(values.std() / 0.03 - 1) < 5 * error and abs(values.mean()) < 0.03 * 10 * error
  assert not made.bias[...].any()
  assert made(jnp.ones((1, 200))).dtype == jnp.bfloat16
