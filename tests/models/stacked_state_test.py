"""Random numbers and other state of stacked NNX blocks: those of a Python loop over their rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models.residual_stream import ResidualStream
from resjax.testing import toy
from resjax.testing.compare import assert_close

L, RATE = 3, 0.5
X = jnp.asarray(toy.embeddings())


class Block(nnx.Module):
  """Dropout in the attention and behind the MLP, stochastic depth, batch statistics."""

  def __init__(self, rngs):
    self.attention = nnx.MultiHeadAttention(
      2, toy.D, decode=False, dropout_rate=RATE, deterministic=False, rngs=rngs
    )
    self.mlp = nnx.Linear(toy.D, toy.D, rngs=rngs)
    self.norm = nnx.BatchNorm(toy.D, epsilon=0.1, rngs=rngs)
    self.dropout = nnx.Dropout(RATE, rngs=rngs)
    self.skips = rngs.skips.fork()
    self.deterministic = False  # `eval()` sets it

  def __call__(self, x):
    x = x.sublayer("attention", toy.rms_norm, self.attention)
    return x.sublayer("mlp", toy.rms_norm, self.branch)

  def branch(self, h):
    out = self.dropout(self.mlp(self.norm(h)))
    kept = True if self.deterministic else jax.random.bernoulli(self.skips(), 0.8)
    return jnp.where(kept, out, 0)


def stack():
  make = nnx.vmap(Block)
  return nnx.split_rngs(splits=L)(make)(nnx.Rngs(0, dropout=1, skips=2))


def combinator(name):
  made = combinators.build(name, num_layers=L, d_model=toy.D, scaled_init=True, rngs=nnx.Rngs(0))
  return made


def losses(how, layers, name, remat="none"):
  """Losses of two calls and gradients of the first; and the state of the layers behind them."""
  graphdef, params, rest = nnx.split(layers, nnx.Param, ...)

  def loss(params, rest):
    layers = nnx.merge(graphdef, params, rest, copy=True)
    stream = ResidualStream.start(combinator(name), X)
    if how == "scan":
      stream = stream.through(layers, remat=remat)
    else:
      of_layer, rows = nnx.split(layers)
      done = []
      for i in range(L):
        block = nnx.merge(of_layer, jax.tree.map(lambda leaf, i=i: leaf[i], rows))
        stream = block(stream)
        done.append(nnx.state(block))
      nnx.update(layers, jax.tree.map(lambda *leaves: jnp.stack(leaves), *done))
    return (stream.final(None) ** 2).sum(), nnx.state(layers, nnx.Not(nnx.Param))

  @jax.jit
  def both(params, rest):
    (first, rest), gradients = jax.value_and_grad(loss, has_aux=True)(params, rest)
    second, rest = loss(params, rest)
    return first, second, gradients, rest

  return both(params, rest)


def plain(tree):
  def data(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf

  return jax.tree.map(data, tree)


@pytest.mark.parametrize(
  ("name", "remat"),
  [
    ("block_attn_res", "full"),
    pytest.param("gate", "full", marks=pytest.mark.slow),
    pytest.param("attn_res", "none", marks=pytest.mark.slow),
    pytest.param("standard", "dots", marks=pytest.mark.slow),
    pytest.param("hyper_connections", "none", marks=pytest.mark.release),
  ],
)
def test_a_scan_draws_and_keeps_what_a_loop_does(name, remat):
  got, want = (losses(how, stack(), name, remat) for how in ("scan", "loop"))
  assert_close(plain(got), plain(want), 1e-5)
  first, second, gradients, rest = got
  assert abs(first - second) > 1e-3 * first  # other masks in the second call
  np.testing.assert_array_equal(rest["dropout"]["rngs"]["count"][...], [2] * L)
  assert len(np.unique(rest["norm"]["mean"][...][:, 0])) == L
  assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients["mlp"]))


def test_no_randomness_in_evaluation():
  layers = stack()
  layers.eval()
  first, second, _, rest = losses("scan", layers, "gate")
  assert first == second
  np.testing.assert_array_equal(rest["dropout"]["rngs"]["count"][...], [0] * L)


class Keyed(nnx.Module):
  """A block whose dropout takes its keys from the call, and keeps the mask."""

  def __init__(self):
    self.mask = nnx.BatchStat(jnp.zeros((L, *X.shape)))

  def __call__(self, x, rngs, scale):
    x = x.sublayer("attention", None, lambda h: 0.1 * h)

    def branch(h):
      self.mask[...] = nnx.Dropout(RATE)(jnp.ones_like(h), rngs=rngs)
      return scale * self.mask * h

    return x.sublayer("mlp", None, branch)


@pytest.mark.parametrize("name", ["gate", "attn_res"])
def test_rngs_of_a_call_give_every_layer_its_own(name):
  layers, rngs = Keyed(), nnx.Rngs(dropout=0)
  masks = []
  for _ in range(2):
    stream = ResidualStream.start(combinator(name), X)
    assert jnp.isfinite(stream.through(layers, rngs, 0.5, remat="full").final(None)).all()
    masks += [*(np.asarray(layers.mask[...]) > 0)]
  for i, mask in enumerate(masks):
    assert 0.2 < mask.mean() < 0.8
    assert all((mask != other).mean() > 0.2 for other in masks[:i])
