"""Blocks that hand on a residual stream: values of the protocol by hand, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models.residual_stream import ResidualStream, branch_init
from resjax.testing import toy
from resjax.testing.compare import assert_close

L = 3
ROWS, X = toy.layers(L), jnp.asarray(toy.embeddings())


class Block(nnx.Module):
  """The branches of the toy model as a block of one layer, or of all layers stacked."""

  def __init__(self, rows):
    self.rows = nnx.data(jax.tree.map(nnx.Param, rows))

  def __call__(self, x, factor=1.0):
    def branch(site, *qkv):
      row = jax.tree.map(lambda p: p[...], self.rows, is_leaf=lambda p: isinstance(p, nnx.Param))
      views = {"x": qkv[0]} | (dict(zip("qkv", qkv, strict=True)) if len(qkv) > 1 else {})
      return factor * toy.branch(row, site, views, pre_norm=False)[1]

    x = x.sublayer("attention", toy.rms_norm, functools.partial(branch, "attention"), "qkv")
    return x.sublayer("mlp", toy.rms_norm, functools.partial(branch, "mlp"))


def in_a_loop(remat, combinator, rows, x):
  stream = ResidualStream.start(combinator, x)
  for i in range(L):
    block = Block(jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf)[i], rows))
    stream = remat(lambda block, stream: block(stream))(block, stream)
  return stream.final(None)


def scanned(remat, combinator, rows, x):
  layers = Block(jax.tree.map(jnp.asarray, rows))
  return ResidualStream.start(combinator, x).through(layers, jnp.ones(()), remat=remat).final(None)


RUNS = {
  "loop": functools.partial(in_a_loop, lambda f: f),
  "nnx.remat": functools.partial(in_a_loop, nnx.remat),
  "jax.checkpoint": functools.partial(in_a_loop, jax.checkpoint),
  "scan": functools.partial(scanned, "none"),
  "scan with remat": functools.partial(scanned, "full"),
}
QUICK = {("muddformer", "nnx.remat"), ("block_attn_res", "scan with remat"), ("gate", "scan")}
# What recomputes without a scan goes by the kind of depth state: one system of each.
KINDS = ("gate", "x0_residual", "attn_res", "delta_block_attn_res", "muddformer", "mhc")
CASES = [
  pytest.param(name, run, marks=() if (name, run) in QUICK else pytest.mark.release)
  for name in combinators.names()
  for run in RUNS
  if name in KINDS or run in ("loop", "scan with remat")
]


@pytest.mark.parametrize("name, run", CASES)
def test_values_and_gradients_are_those_of_the_protocol_by_hand(name, run):
  made = toy.build(name, {}, num_layers=L)
  want = toy.jitted(functools.partial(toy.by_hand, branch=_branch), made, ROWS, X)
  assert_close(toy.jitted(RUNS[run], made, ROWS, X), want, 2e-5)


def _branch(layer, site, views, context=None, *, pre_norm):
  """The toy branch, which uses x alone where it is not given q, k and v."""
  used = {k: v for k, v in views.items() if k != "x" or set(views) == {"x"}}
  normed = {k: toy.rms_norm(v) if pre_norm else v for k, v in used.items()}
  x = normed.get("x", normed.get("q"))
  return normed, toy.branch(layer, site, {"x": x} | normed, pre_norm=False)[1]


def start(name="standard", **options):
  made = toy.build(name, options, num_layers=L, random=False)
  return ResidualStream.start(made, X)


def double(x):
  return 2 * x


def test_norms_are_not_called_where_the_combinator_replaces_them():
  def fails(x):
    raise AssertionError("called")

  def run(name, final_norm):
    stream = start(name)
    for _ in range(L):
      stream = stream.sublayer("attention", fails, double).sublayer("mlp", fails, double)
    return stream.final(final_norm)

  assert jax.eval_shape(lambda: run("deepnorm", double)).shape == X.shape
  jax.eval_shape(lambda: run("gated_residual", fails))


def test_branch_init_has_the_gain_of_the_combinator():
  init = branch_init(start("deepnorm").combinator, nnx.initializers.ones)
  np.testing.assert_allclose(init(jax.random.key(0), (2,), jnp.float32), (4 * 2 * L) ** -0.25)


def test_sites_and_layers_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match=r"'mlp' runs where 'attention' comes next; .*sites="):
    start().sublayer("mlp", None, double)
  with pytest.raises(ValueError, match=r"0 of num_layers=3 layers have run .* number of blocks"):
    start().final(None)
  stream = start()
  for _ in range(L):
    stream = stream.sublayer("attention", None, double).sublayer("mlp", None, double)
  with pytest.raises(ValueError, match=r"after all num_layers=3 layers .* number of blocks"):
    stream.sublayer("attention", None, double)
  for wrong, named in (
    (lambda x: x[:, :1], r"an array \(2, 1, 8\)"),
    (lambda x: (x, None), "tuple"),
  ):
    with pytest.raises(ValueError, match=f"'attention' returns {named}; .* one array .2, 4, 8."):
      start().sublayer("attention", None, wrong)
  with pytest.raises(ValueError, match="not at its first site"):
    stream.through(Block(ROWS))
  with pytest.raises(ValueError, match="leaves out q, k, v; attend with q, k and v"):
    jax.eval_shape(lambda: start("muddformer").sublayer("attention", None, double))


class Half(nnx.Module):
  """Runs one site only."""

  def __init__(self):
    self.scale = nnx.Param(jnp.ones(L))

  def __call__(self, x):
    return x.sublayer("attention", None, lambda x: self.scale * x)


class NoStream(Half):
  """A block that returns a pair, as the body of a scan does."""

  def __call__(self, x):
    return x, None


class WithState(Half):
  """A block with what is no parameter."""

  def __init__(self, state):
    super().__init__()
    self.state = state

  def __call__(self, x):
    self.added = nnx.BatchStat(jnp.zeros(()))
    return super().__call__(x).sublayer("mlp", None, double)


def test_stacked_blocks_that_a_scan_cannot_run_are_refused():
  for name in ("gate", "attn_res"):
    with pytest.raises(ValueError, match=r"ran 1 of the sites \('attention', 'mlp'\)"):
      start(name).through(Half())
    with pytest.raises(ValueError, match="a block returns tuple; it must return the stream"):
      start(name).through(NoStream())
    with pytest.raises(ValueError, match=r"state.*shape \(\), .*=3.* nnx.split_rngs\(splits=3\)"):
      start(name).through(WithState(nnx.RngKey(jax.random.key(0), tag="dropout")))
    with pytest.raises(ValueError, match=r"adds or removes layer.*added.*, which a scan cannot"):
      start(name).through(WithState(nnx.BatchStat(jnp.zeros(L))))
  with pytest.raises(ValueError, match="loop over the blocks of your own model in Python"):
    start("muddformer", row_sizes="faithful").through(Block(ROWS))


@pytest.mark.parametrize("name", ["gate", "attn_res"])
def test_a_foreign_scan_is_answered_with_the_one_to_take(name):
  layers = Block(jax.tree.map(jnp.asarray, ROWS))
  scan = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
  with pytest.raises(Exception, match=r"with ResidualStream\.through, in Linen with .*Layers"):
    scan(start(name), layers)
