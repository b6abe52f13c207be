"""Patched states: those of the same prompt change nothing, all of the end make the prompt clean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.combinators import TokenContext
from resjax.models.decode_cache import TokensInRows
from resjax.study.analysis.patching import patch
from tests.helpers import decoders

CLEAN = np.array([3, 17, 5, 29, 11], np.int32)
CORRUPTED = np.array([3, 8, 5, 29, 11], np.int32)
ANSWERS = (4, 9)


def difference(decoder, tokens):
  logits = np.asarray(decoder.logits(decoder(jnp.asarray(tokens[None])))[0, -1])
  return logits[ANSWERS[0]] - logits[ANSWERS[1]]


@pytest.mark.parametrize(
  "name",
  [
    *("standard", "block_attn_res"),
    *(
      pytest.param(name, marks=pytest.mark.release)
      for name in combinators.names()
      if name not in ("standard", "block_attn_res")
    ),
  ],
)
@pytest.mark.slow
def test_what_patches_do_for_any_combinator(name):
  # Convolutions of the embedding would put the changed token into the first states of later ones.
  plain = {"embedding_expansion": False} if name == "deep_delta" else None
  decoder = decoders.decoder(decoders.config("llama", name, plain))
  same = patch(decoder, CLEAN, CLEAN, ANSWERS)
  assert same.clean == same.corrupted and np.isnan(same.recovered(same.patched)).all()
  np.testing.assert_allclose(same.patched, same.clean, atol=2e-6)  # kernels differ from row to row
  np.testing.assert_allclose(same.patched_all, same.clean, atol=2e-6)

  found = patch(decoder, CLEAN, CORRUPTED, ANSWERS, every="site")
  assert found.patched.shape == (1 + decoder.combinator.num_sublayers, len(CLEAN))
  np.testing.assert_allclose(found.clean, difference(decoder, CLEAN), atol=1e-5)
  np.testing.assert_allclose(found.corrupted, difference(decoder, CORRUPTED), atol=1e-5)
  # All states of one depth decide all that follows, as does the last one of the last token.
  np.testing.assert_allclose(found.recovered(found.patched_all), 1, atol=1e-4)
  np.testing.assert_allclose(found.recovered(found.patched[-1, -1:]), 1, atol=1e-4)
  # The first state is that of the same token; no later one sees a token before the change.
  np.testing.assert_allclose(found.recovered(found.patched[:, 0]), 0, atol=1e-4)
  np.testing.assert_allclose(found.recovered(found.patched[0, 1:2]), 1, atol=1e-4)


def test_a_patch_is_what_a_loop_does_by_hand():
  """The state after layer 1 of token 2 is replaced in a plain loop over the layers."""
  decoder = decoders.decoder(decoders.config("gpt2"))
  c = decoder.combinator
  tokens = jnp.asarray(np.stack([CLEAN, CORRUPTED]))
  place = TokensInRows(jnp.arange(len(CLEAN))[None] * jnp.ones((2, 1), int), jnp.ones((2, 5), int))
  state = c.init(decoder.embed(tokens, place.positions), TokenContext(place.segment_ids))
  graphdef, stacked = nnx.split(decoder.layers)
  for index in range(c.num_layers):
    layer = nnx.merge(graphdef, jax.tree.map(lambda leaf, i=index: leaf[i], stacked))
    for site in c.sites:
      views, tape = c.read(state, index, site)
      normed = {name: norm(views[name]) for name, norm in layer.norms[site].items()}
      out = decoders.branch(layer, site, normed, place)
      state = c.write(state, index, site, out, normed=normed, tape=tape)
    if index == 1:
      state = state.at[1, 2].set(state[0, 2])
  logits = decoder.logits(decoder.final_norm(c.final(state)))[1, -1]
  found = patch(decoder, CLEAN, CORRUPTED, ANSWERS)
  np.testing.assert_allclose(found.patched[2, 2], logits[4] - logits[9], atol=1e-5)
  assert abs(found.patched[2, 2] - found.corrupted) > 1e-3


def test_answers_are_the_most_probable_tokens_by_default():
  decoder = decoders.decoder(decoders.config("llama"))
  found = patch(decoder, CLEAN, CORRUPTED[::-1])
  logits = decoder.logits(decoder(jnp.stack([CLEAN, CORRUPTED[::-1]])))[:, -1]
  assert found.answers == tuple(np.argmax(logits, axis=-1))


def test_prompts_that_cannot_be_compared_are_refused():
  decoder = decoders.decoder(decoders.config("llama"))
  with pytest.raises(ValueError, match="clean prompt has 5 tokens and the corrupted one 4"):
    patch(decoder, CLEAN, CORRUPTED[:4])
  with pytest.raises(ValueError, match="both prompts are answered with token"):
    patch(decoder, CLEAN, CLEAN)
  with pytest.raises(ValueError, match="token 4 less itself is no difference"):
    patch(decoder, CLEAN, CORRUPTED, (4, 4))
