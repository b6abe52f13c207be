"""Every system on a user's own mesh: Explicit, Auto and Manual axes, in a loop and in a scan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from resjax import combinators
from resjax.models.residual_stream import ResidualStream
from resjax.testing import toy
from resjax.testing.compare import assert_close
from tests.helpers import decoders
from tests.helpers.losses import text_loss

L, D = 3, 8
X = np.random.default_rng(0).normal(size=(4, 8, D)).astype(np.float32)
# Devices add the terms of a sum over all of X in another order.
ROUNDING = X.size * np.finfo(np.float32).eps
SPECS = {
  "rows": P("data"),
  "rows and width": P("data", None, "model"),
  "rows and tokens": P("data", "model"),
  "nothing": P(),
}
# Of each way to have a derivative of one's own: by sources, by streams, by gates; and a shift.
MECHANISMS = ("attn_res", "mhc", "gated_residual", "deep_delta")
OPTIONS = {
  "deep_delta": {"compressor": "token"},
  "mhc": {"sinkhorn_iterations": 2, "num_streams": 2},
}
# Options that change the state.
OTHERS = (("independent_hc", {"read_site": "previous", "head": "previous"}),)


class Block(nnx.Module):
  def __init__(self):
    self.scale = nnx.Param(jnp.full(L, 0.5))

  def __call__(self, stream):
    stream = stream.sublayer("attention", None, lambda q, k, v: jnp.tanh(q + k + v), "qkv")
    return stream.sublayer("mlp", None, lambda x: x * self.scale[...])


def network(name, scan, options=None):
  """A function of parameters and embeddings, and the parameters."""
  options = options or OPTIONS.get(name, {})
  graphdef, params = nnx.split(toy.build(name, options, num_layers=L))

  def loss(params, x):
    stream = ResidualStream.start(nnx.merge(graphdef, params), x)
    if scan:
      return jnp.sum(stream.through(Block()).final(None) ** 2)
    for _ in range(L):
      stream = stream.sublayer("attention", None, lambda q, k, v: jnp.tanh(q + k + v), "qkv")
      stream = stream.sublayer("mlp", None, lambda x: 0.5 * x)
    return jnp.sum(stream.final(None) ** 2)

  return jax.value_and_grad(loss, (0, 1)), params


def can_scan(name):
  return toy.build(name, {}, num_layers=L, random=False).strategy != "loop"


def mesh(kind):
  return jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)


def manual(f, axes=("data", "model")):
  """f on the rows of each device, whose losses are added; the compiler has the other axes."""

  def local(params, x):
    value, (d_params, d_x) = f(params, x)
    return jax.lax.psum(value, "data"), (d_params, d_x)

  specs = {"in_specs": (P(), P("data")), "out_specs": (P(), (P(), P("data")))}
  return jax.shard_map(local, mesh=mesh(AxisType.Auto), axis_names=set(axes), **specs)


@functools.cache
def refuses_gelu():
  """Whether this JAX fails for the gradient of any exact GELU in a shard_map, as 0.12.0.1 does."""
  d_gelu = jax.grad(lambda x: jnp.sum(jax.nn.gelu(x, approximate=False)))
  rows = {"in_specs": P("data"), "out_specs": P("data")}
  try:
    jax.eval_shape(jax.shard_map(d_gelu, mesh=mesh(AxisType.Auto), **rows), X)
  except ValueError as error:
    return "varying manual axes" in str(error)
  return False


@pytest.mark.parametrize(
  "name, options",
  [
    (name, None) if name in MECHANISMS else pytest.param(name, None, marks=pytest.mark.release)
    for name in combinators.names()
  ]
  + [pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS],
)
def test_explicit_and_manual_axes_fit_the_types_of_all(name, options):
  for scan in (False, True)[: 1 + can_scan(name)]:
    f, params = network(name, scan, options)
    if name != "muddformer" or not refuses_gelu():  # its weights pass a GELU
      jax.eval_shape(manual(f), params, X)
      jax.eval_shape(manual(f, ["data"]), params, X)
    explicit = mesh(AxisType.Explicit)
    with jax.set_mesh(explicit):
      for spec in SPECS.values():
        x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(explicit, spec))
        value, (d_params, d_x) = jax.eval_shape(f, params, x)
        assert value.shape == () and jax.typeof(d_x).sharding.spec == jax.typeof(x).sharding.spec
        for d in jax.tree.leaves(d_params):
          assert not any(jax.typeof(d).sharding.spec), "gradients of parameters are whole"


@functools.cache
def expected(name, scan):
  f, params = network(name, scan)
  return jax.device_get(jax.jit(f)(params, X))


@pytest.mark.parametrize(
  "spec", ["rows and width", pytest.param("rows", marks=pytest.mark.release)]
)
@pytest.mark.parametrize(
  "name",
  [
    name if name in MECHANISMS else pytest.param(name, marks=pytest.mark.release)
    for name in combinators.names()
  ],
)
@pytest.mark.parametrize(
  "kind", [AxisType.Explicit, pytest.param(AxisType.Auto, marks=pytest.mark.release)]
)
def test_values_and_gradients_are_those_of_one_device(name, spec, kind):
  scan = name == "attn_res"
  f, params = network(name, scan)
  made = mesh(kind)
  with jax.set_mesh(made):
    got = jax.jit(f)(params, jax.device_put(X, NamedSharding(made, SPECS[spec])))
  assert_close(jax.device_get(got), expected(name, scan), ROUNDING)


@pytest.mark.parametrize("axes", [("data", "model"), ("data",)])
@pytest.mark.parametrize("name", ["mhc", "attn_res"])
def test_values_and_gradients_in_a_shard_map_are_those_of_one_device(name, axes):
  scan = name == "attn_res"
  f, params = network(name, scan)
  got = jax.device_get(jax.jit(manual(f, axes))(params, X))
  assert_close(got, expected(name, scan), ROUNDING)


@pytest.mark.parametrize("style, name", [("gpt2", "standard"), ("llama", "block_attn_res")])
def test_a_decoder_takes_rows_that_lie_on_explicit_axes(style, name):
  config = decoders.config(style, name)
  graphdef, params = nnx.split(decoders.decoder(config))
  tokens = decoders.tokens(config, batch=4, length=8)

  def loss(params, tokens):
    ones = jnp.ones_like(tokens)
    positions = jnp.broadcast_to(jnp.arange(8, dtype=jnp.int32), tokens.shape)
    texts = {"inputs": tokens, "targets": tokens, "segment_ids": ones, "positions": positions}
    return text_loss(nnx.merge(graphdef, params), texts, chunk_size=16).nats

  gradient = jax.jit(jax.value_and_grad(loss))
  want = jax.device_get(gradient(params, tokens))
  made = mesh(AxisType.Explicit)
  with jax.set_mesh(made):
    got = gradient(params, jax.device_put(tokens, NamedSharding(made, P("data"))))
  assert_close(jax.device_get(got), want, ROUNDING)


def test_a_part_of_the_width_is_refused_in_one_line():
  f, params = network("highway", scan=False)
  with pytest.raises(ValueError, match=r"has width 2, the combinator d_model=8; inside shard_map"):
    jax.eval_shape(f, params, X[..., :2])
