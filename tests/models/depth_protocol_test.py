"""Parts of the combinator protocol that a scan must hand on, with combinators made for the test."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.combinators import AttnRes, BlockAttnRes, Standard
from resjax.testing import toy
from resjax.testing.compare import assert_close

LAYERS, X = toy.layers(), jnp.asarray(toy.embeddings())
SIZES = {"num_layers": toy.L, "d_model": toy.D}


class SharedGain(nnx.Module):
  """Scales every read by one vector that all layers share."""

  def __init__(self, **options):
    super().__init__(**options)
    self.gain = nnx.Param(jnp.linspace(0.5, 1.5, toy.D))

  def read(self, state, layer, site):
    views, tape = super().read(state, layer, site)
    return {"x": views["x"] * self.gain[...]}, tape


class SharedStandard(SharedGain, Standard):
  pass


class SharedFull(SharedGain, AttnRes):
  pass


class SharedBlock(SharedGain, BlockAttnRes):
  pass


class Taped(Standard):
  """Offers q, k and v views, and writes with what it remembers of the read."""

  def read(self, state, layer, site):
    views = {name: state + shift for name, shift in zip("xqkv", (0, 0.5, -0.5, 1), strict=True)}
    return views, {"base": 0.1 * state}

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    return state + out + tape["base"] * jnp.cos(normed["q"] + normed["v"])


class Indexed(Standard):
  """Does something else in every layer and site."""

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    return state + out / (1 + layer + 0.5 * self.sites.index(site))


def by_scan_and_by_hand(made):
  want = toy.jitted(toy.by_hand, made, LAYERS, X)
  for remat in ("none", "full"):
    yield toy.jitted(functools.partial(toy.run, remat=remat), made, LAYERS, X), want


@pytest.mark.parametrize(
  "cls, options",
  [(SharedStandard, {}), (SharedFull, {}), (SharedBlock, {"layers_per_block": 2})],
  ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.slow
def test_gradients_of_a_parameter_that_all_layers_share(cls, options):
  for got, want in by_scan_and_by_hand(cls(**SIZES, **options)):
    assert_close(got, want, 1e-5)
    assert np.abs(got[1][0]["gain"]).min() > 1e-3


@pytest.mark.parametrize("cls", [Taped, Indexed])
def test_views_tape_normed_and_layer_reach_every_write(cls):
  plain = toy.compiled_by_hand(Standard(**SIZES), LAYERS, X)
  for got, want in by_scan_and_by_hand(cls(**SIZES)):
    assert_close(got, want, 1e-5)
    assert np.abs(got[0] - plain).max() > 0.1
