"""The attenuated residual path of every supported combinator equals float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.analysis.path_intervention import SUPPORTED, AttenuatedPath, attenuate, cut_factors
from tests.helpers import decoders, toy
from tests.helpers.compare import assert_close
from tests.helpers.systems.common import sigmoid, sublayers

FACTORS = np.random.default_rng(5).uniform(0, 1.5, (toy.L, len(toy.SITES)))
OPTIONS = {
  "attenuation": {"layers": (1, -1), "alpha": 0.4},
  "gate": {"granularity": "token"},
  "rezero": {"granularity": "sublayer", "pre_norm": True},
  "deepnorm": {"alpha": 1.5, "eps": 1e-3},
}


def written(name, params, at, stream, n, out):
  """Returns the stream that a site writes, given its branch; `at` is (layer, site index)."""
  if name == "standard":
    return stream + out
  if name == "attenuation":
    return (0.4 if at[0] in (1, toy.L - 1) else 1.0) * stream + out
  if name == "gate":
    a = 2 * sigmoid(n @ params["weight"][at] + params["bias"][at])
    return a[..., None] * stream + out
  if name == "rezero":
    return stream + params["alpha"][at] * out
  if name == "layerscale":
    return stream + params["scale"][at] * out
  assert name == "deepnorm"
  y = 1.5 * stream + out
  z = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-3)
  return params["norm_scale"][at] * z + params["norm_bias"][at]


@pytest.mark.parametrize("name", SUPPORTED)
def test_equations(name):
  with jax.enable_x64(True):
    inner = toy.build(name, OPTIONS.get(name, {}))
    made = AttenuatedPath(inner, jnp.asarray(FACTORS))
    layers, x = toy.layers(dtype=float), toy.embeddings(dtype=float)
    got = [drive(made, jax.tree.map(jnp.asarray, layers), jnp.asarray(x)) for drive in DRIVES]
  params, want = toy.parameters(inner), x
  for layer, index, run in sublayers(layers, toy.SITES, inner.pre_norm):
    normed, out = run(want)
    stream = FACTORS[layer, index] * want
    want = written(name, params, (layer, index), stream, normed["x"], out)
  for y in got:
    assert y.dtype == np.float64
    assert_close(y, want, 1e-12)


DRIVES = (toy.by_hand, toy.run)


def test_other_combinators_are_refused():
  for name in combinators.names():
    if name in SUPPORTED:
      continue
    config = decoders.config("llama", name)
    decoder = decoders.shapes(config)
    with pytest.raises(ValueError, match=f"residual.name='{name}' is not defined") as error:
      attenuate(decoder, np.ones((3, 2)))
    assert "standard, attenuation, gate" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["gate", "attenuation"])
def test_a_cut_of_whole_layers_is_refused(name):
  decoder = decoders.shapes(decoders.config("llama", name, {"scope": "layer"}))
  with pytest.raises(ValueError, match=f"'{name}' with scope='layer' is not defined"):
    attenuate(decoder, np.ones((3, 2)))


def test_the_decoder_itself_stays_as_it_is():
  decoder = decoders.shapes(decoders.config())
  before = decoder.combinator
  changed = attenuate(decoder, np.zeros((3, 2)))
  assert decoder.combinator is before and type(changed.combinator) is AttenuatedPath
  (shared,), (own,) = (jax.tree.leaves(nnx.state(model.embed)) for model in (changed, decoder))
  assert shared is own


def test_cut_factors():
  decoder = decoders.shapes(decoders.config())
  np.testing.assert_array_equal(
    cut_factors(decoder, 1, ("mlp",), 0.25), [[1, 1], [1, 0.25], [1, 1]]
  )
