"""A decoder around a combinator that is made already."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models.config import MupConfig
from resjax.models.decoder import Decoder
from tests.helpers import decoders, layouts


def instance(config, **changes):
  sizes = {"num_layers": config.num_layers, "d_model": config.d_model, "sites": config.sites}
  return combinators.AttnRes(**{**sizes, "rngs": nnx.Rngs(0), **changes})


def test_it_is_the_decoder_that_the_name_gives():
  named = decoders.config("llama", "attn_res")
  plain = dataclasses.replace(named, residual=decoders.config().residual)
  tokens = decoders.tokens(named)
  by_name = Decoder(named, rngs=nnx.Rngs(0))
  given = Decoder(plain, instance(plain), rngs=nnx.Rngs(0))
  run = nnx.jit(lambda model, tokens: model(tokens))
  np.testing.assert_array_equal(run(given, tokens), run(by_name, tokens))
  assert jax.tree.structure(nnx.state(given)) == jax.tree.structure(nnx.state(by_name))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_layers": 7}, "the combinator has num_layers=7, the decoder"),
    ({"d_model": 8}, "the combinator has d_model=8, the decoder"),
    ({"sites": ("mlp",)}, r"the combinator has sites=\('mlp',\), the decoder"),
  ],
)
def test_sizes_that_do_not_agree_are_refused(changes, message):
  config = decoders.config()
  with pytest.raises(ValueError, match=message):
    Decoder(config, instance(config, **changes), rngs=nnx.Rngs(0))


def test_another_mesh_and_scaled_branches_are_refused():
  config = decoders.config()
  with pytest.raises(ValueError, match=r"combinator is for the mesh .*give both the same layout"):
    Decoder(config, instance(config), layout=layouts.layout(data=8), rngs=nnx.Rngs(0))
  scaled = dataclasses.replace(config, mup=MupConfig(base_layers=2))
  with pytest.raises(ValueError, match=r"base_layers=2 scales the branches of 'standard'.*AttnRes"):
    Decoder(scaled, instance(config), rngs=nnx.Rngs(0))
