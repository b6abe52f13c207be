"""The heat map equals a lens in a plain loop, and its last column the prediction of the model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.data.tokenizer import ByteTokenizer
from resjax.models.decode_cache import TokensInRows
from resjax.nn.rope import Rotation
from resjax.study.analysis.heat_map import heat_map
from resjax.study.analysis.report.heat_table import Cell, in_words
from tests.helpers import decoders, layouts

TOKENS = np.arange(11, dtype=np.int32) * 7 % 31


def closed_states(decoder, tokens):
  """Returns the embedding and the closed state after each site of `standard`, by a plain loop."""
  row = jnp.asarray(tokens)[None]
  x = decoder.embed(row, jnp.arange(len(tokens))[None])
  graphdef, layers = nnx.split(decoder.layers)
  rows = TokensInRows(jnp.arange(len(tokens))[None], jnp.ones_like(row))
  states, ropes = [x], decoder.config.layer_ropes
  for index in range(decoder.config.num_layers):
    layer = nnx.merge(graphdef, jax.tree.map(lambda leaf, i=index: leaf[i], layers))
    for site in decoder.combinator.sites:
      normed = {"x": layer.norms[site]["x"](x)}
      x = x + decoders.branch(layer, site, normed, rows, Rotation((ropes[index],)))
      states.append(x)
  return states


@pytest.mark.parametrize("every", [pytest.param("layer", marks=pytest.mark.release), "site"])
def test_equals_a_loop_by_hand(every):
  decoder = decoders.decoder(decoders.config())
  found = heat_map(decoder, TOKENS, every)
  # The loop is one program, since it takes ten times as long operation by operation.
  states = jax.jit(lambda tokens: closed_states(decoder, tokens))(TOKENS)
  states = states[:: 1 if every == "site" else 2]
  assert found.tokens.shape == found.probabilities.shape == (len(states), len(TOKENS))
  for index, state in enumerate(states):
    logits = decoder.logits(decoder.final_norm(state))[0]
    np.testing.assert_array_equal(found.tokens[index], jnp.argmax(logits, axis=-1))
    wanted = jnp.max(jax.nn.softmax(logits), axis=-1)
    np.testing.assert_allclose(found.probabilities[index], wanted, rtol=1e-5)


@pytest.mark.slow
def test_the_last_column_is_the_prediction_on_any_devices():
  config = decoders.config(residual="block_attn_res", options={"layers_per_block": 2})
  alone = decoders.decoder(config)
  found = heat_map(alone, TOKENS)
  logits = alone.logits(alone(jnp.asarray(TOKENS)[None]))[0]
  np.testing.assert_array_equal(found.tokens[-1], jnp.argmax(logits, axis=-1))
  wanted = jnp.max(jax.nn.softmax(logits), axis=-1)
  np.testing.assert_allclose(found.probabilities[-1], wanted, rtol=1e-5)
  split = decoders.decoder(config, layout=layouts.layout("long_context", data=2, sequence=4))
  both = heat_map(split, TOKENS)
  np.testing.assert_array_equal(both.tokens, found.tokens)
  np.testing.assert_allclose(both.probabilities, found.probabilities, rtol=1e-4)


def test_learned_positions_need_not_reach_beyond_the_text():
  decoder = decoders.decoder(decoders.config("gpt2", max_positions=len(TOKENS)))
  found = heat_map(decoder, TOKENS)
  logits = decoder.logits(decoder(jnp.asarray(TOKENS)[None]))[0]
  wanted = jnp.max(jax.nn.softmax(logits), axis=-1)
  np.testing.assert_allclose(found.probabilities[-1], wanted, rtol=1e-5)


def test_in_words():
  decoder = decoders.decoder(decoders.config(vocab_size=257))
  tokens = np.array([256, *b"a\n\xc3"], np.int32)
  found = heat_map(decoder, tokens)
  words = in_words(found, tokens, ByteTokenizer(), "a.txt")
  assert words.tokens == ["<|endoftext|>", "a", "↵", "\\xc3"]
  assert words.columns == ["embedding", "layer 0", "layer 1", "layer 2"]
  for t, row in enumerate(words.cells):
    for p, cell in enumerate(row):
      assert cell.probability == found.probabilities[p, t]
      assert cell.is_input == (found.tokens[p, t] == tokens[t])
      assert cell.is_next == (t + 1 < len(tokens) and found.tokens[p, t] == tokens[t + 1])
  broken = dataclasses.replace(found, probabilities=np.full_like(found.probabilities, np.nan))
  cells = in_words(broken, tokens, ByteTokenizer(), "a.txt").cells
  assert {cell for row in cells for cell in row} == {Cell("NaN", 0.0, False, False)}
