"""Random keys and other collections of stacked Linen blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from resjax.interop.linen import Layers, Residual
from resjax.testing import toy
from resjax.testing.compare import assert_close

L = 3
X = jnp.asarray(toy.embeddings())


class Block(linen.Module):
  """Attention with dropout, batch statistics, and an MLP behind a dropout that is sown."""

  train: bool = True

  @linen.compact
  def __call__(self, x):
    attention = linen.MultiHeadDotProductAttention(
      2, dropout_rate=0.5, deterministic=not self.train
    )
    x = x.sublayer("attention", toy.rms_norm, attention)
    norm = linen.BatchNorm(use_running_average=not self.train)
    dropout = linen.Dropout(0.5, deterministic=not self.train)

    def branch(h):
      mask = dropout(jnp.ones_like(h))
      self.sow("intermediates", "mask", mask)
      return linen.Dense(toy.D, name="dense")(norm(h)) * mask

    return x.sublayer("mlp", toy.rms_norm, branch)


class Model(linen.Module):
  """Blocks in a scan."""

  kind: str
  train: bool = True
  remat: str = "none"

  @linen.compact
  def __call__(self, x):
    stream = Residual(self.kind, L, toy.D, scaled_init=True)(x)
    return Layers(Block(self.train), remat=self.remat, name="layers")(stream).final(None)


KEYS = {"dropout": jax.random.key(1)}


@pytest.fixture(scope="module", params=["gate", "attn_res"])
def kind(request):
  return request.param


@pytest.fixture(scope="module")
def variables(kind):
  drawn = jax.jit(Model(kind).init)({"params": jax.random.key(0), **KEYS}, X)
  return {name: drawn[name] for name in drawn if name != "intermediates"}


def test_a_mask_for_every_layer_and_the_same_in_both_passes(kind, variables):
  def loss(params, remat, keys):
    model, given = Model(kind, remat=remat), variables | {"params": params}
    y, changed = model.apply(given, X, rngs=keys, mutable=["intermediates", "batch_stats"])
    return (y**2).sum(), changed

  def run(remat, key=1):
    call = jax.jit(lambda params: jax.value_and_grad(loss, has_aux=True)(params, remat, keys))
    keys = {"dropout": jax.random.key(key)}
    return call(variables["params"])

  kept, recomputed, other = run("none"), run("full"), run("none", 2)
  assert_close(kept, recomputed, 1e-5)
  (value, changed), gradients = kept
  (mask,) = changed["intermediates"]["layers"]["mask"]
  assert mask.shape == (L, *X.shape)
  masks = [*mask, *other[0][1]["intermediates"]["layers"]["mask"][0]]
  for i, one in enumerate(masks):
    assert all((one != before).mean() > 0.2 for before in masks[:i])
  mean = changed["batch_stats"]["layers"]["BatchNorm_0"]["mean"]
  assert mean.shape == (L, toy.D) and len(np.unique(mean[:, 0])) == L
  # The values are those of the layers one by one, with the masks that they drew.
  assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients["layers"]["dense"]))
  assert value != other[0][0]


def test_evaluation_needs_no_key(kind, variables):
  model = Model(kind, train=False)
  y = model.apply(variables, X)
  assert jnp.isfinite(y).all() and (y == model.apply(variables, X, rngs=KEYS)).all()
