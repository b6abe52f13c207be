"""The lens at the last position is the decoder's own prediction, for every combinator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.study.analysis.lens import Lens
from tests.helpers import decoders, walks


@walks.names("denseformer")
def test_lens_at_the_last_position_gives_the_logits_of_the_decoder(name):
  check(name, {}, "scan")
  if name == "muddformer":
    check(name, {"row_sizes": "faithful"}, "loop")


@pytest.mark.slow
@pytest.mark.parametrize(
  "changes",
  [
    {"post_norm": True, "logit_softcap": 3.0, "embed_scale": True, "windows": (0, 4)},
    {"parallel": True, "norm": "layernorm", "bias": "all", "tied_embeddings": False},
  ],
  ids=["gemma2", "neox"],
)
def test_it_does_so_with_the_options_of_pretrained_families(changes):
  check("standard", {}, "scan", **changes)


def check(name, options, depth, **changes):
  config = decoders.config("llama", name, options, depth=depth, **changes)
  tokens, decoder = decoders.tokens(config), decoders.decoder(config)

  def logits(tokens):
    lens = Lens(decoder, 8)
    weights = jnp.ones((1, *tokens.shape))
    seen = lens.inputs(jnp.stack([tokens] * 3), weights)

    def probe(visits, seen):
      return lens.logits(lens.normed(visits[-1].closed(), seen), seen)

    run = decoder.probe(probe, seen, tokens)
    last = lens.logits(lens.normed(run.output, seen), seen)
    return run.layers, last, decoder.logits(decoder(tokens))

  layers, last, want = jax.jit(logits)(tokens)
  assert layers.shape == (config.num_layers, *want.shape)
  for got in (layers[-1], last):
    np.testing.assert_allclose(got, want, atol=1e-5)
  if name != "rezero":  # its layers are
    assert np.abs(layers[0] - want).max() > 1e-2
