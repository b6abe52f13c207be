"""The attenuated residual path of every supported combinator equals float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models.decoder import Decoder
from resjax.study.analysis.path_intervention import (
  SOURCES,
  STREAMS,
  SUPPORTED,
  AttenuatedPath,
  attenuate,
  cut_factors,
)
from resjax.testing import toy
from resjax.testing.compare import assert_close
from tests.helpers import decoders, walks
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


@pytest.mark.parametrize("name", STREAMS)
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


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.slow
def test_a_fresh_model_with_sources_is_cut_like_a_standard_one(name):
  """Its reads are uniform means, and norms take their scale away."""
  sizes = {"init_std": 0.2, "norm_eps": 1e-12}
  made = {
    system: Decoder(decoders.config("llama", system, **sizes), rngs=nnx.Rngs(0))
    for system in ("standard", name)
  }
  own = nnx.to_pure_dict(nnx.state(made["standard"]))
  own.pop("combinator", None)
  nnx.update(made[name], own)
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 16, (2, 8)))
  factors = np.random.default_rng(1).uniform(0, 1.5, (3, 2))
  want, got = (attenuate(one, factors)(tokens) for one in made.values())
  assert_close(got, want, 1e-4)
  assert np.abs(np.asarray(made[name](tokens)) - np.asarray(got)).max() > 0.01


@walks.names("block_attn_res", among=SOURCES, others=pytest.mark.slow)
def test_a_factor_of_one_changes_nothing(name):
  decoder = Decoder(decoders.config("llama", name), rngs=nnx.Rngs(0))
  rng = np.random.default_rng(0)
  changed = jax.tree.map(
    lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype), nnx.state(decoder.combinator)
  )
  nnx.update(decoder.combinator, changed)  # Reads are no longer uniform.
  tokens = jnp.asarray(rng.integers(0, 16, (2, 8)))
  assert_close(attenuate(decoder, np.ones((3, 2)))(tokens), decoder(tokens), 1e-5)
