"""Decoding with a cache gives what the decoder gives for whole rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models.config import ShortSWAConfig
from resjax.models.sampling import generate
from tests.helpers import decoders, fast
from tests.helpers.compare import assert_close

names = pytest.mark.parametrize("name", combinators.names())
EXTRAS = {"short_swa": ShortSWAConfig(window=3), "value_residual": "learned"}
LENGTH = 9


def cached(model, tokens, chunks, segment_ids=None):
  """Hidden states of all tokens, run in chunks of these lengths."""
  if segment_ids is None:
    segment_ids = jnp.ones_like(tokens)
  graphdef, state = nnx.split(model)
  decode = fast.jit(lambda state, *rest: nnx.merge(graphdef, state).decode(*rest))
  cache, start, hidden = model.empty_cache(len(tokens), sum(chunks)), 0, []
  for count in chunks:
    part = slice(start, start + count)
    out, cache = decode(state, tokens[:, part], cache, segment_ids[:, part])
    hidden.append(out)
    start += count
  assert cache.length == tokens.shape[1]
  return jnp.concatenate(hidden, axis=1)


@names
@pytest.mark.parametrize("style, extras", [("gpt2", {}), ("llama", EXTRAS)])
def test_prefill_and_single_tokens_are_the_whole_row(name, style, extras):
  config = decoders.config(style, name, **extras)
  model = decoders.decoder(config)
  tokens = decoders.tokens(config, length=LENGTH)
  whole = fast.jit(lambda state: nnx.merge(nnx.graphdef(model), state)(tokens))
  assert_close(cached(model, tokens, (6, 1, 1, 1)), whole(nnx.state(model)), 2e-5)


@pytest.mark.parametrize(
  "changes",
  [
    {"value_residual": "learned"},
    {"value_residual": "fixed"},
    *({"short_swa": ShortSWAConfig(window)} for window in (1, 2, 5, 40)),
    {"short_swa": ShortSWAConfig(4, num_heads=2), "value_residual": "fixed", "depth": "loop"},
    {"qk_norm": True, "short_swa": ShortSWAConfig(4)},
    {"residual": "attn_res", "value_residual": "learned", "depth": "loop"},
    {"num_layers": 1, **EXTRAS},
  ],
)
@pytest.mark.parametrize("chunks", [(5, 1, 2, 1)])
def test_attention_options_and_chunks(changes, chunks):
  config = decoders.config("llama", **changes)
  model = decoders.decoder(config)
  tokens = decoders.tokens(config, length=LENGTH)
  assert_close(cached(model, tokens, chunks), model(tokens), 2e-5)


@names
def test_padding_on_the_left_changes_nothing(name):
  config = decoders.config("llama", name, **EXTRAS)
  model = decoders.decoder(config)
  tokens = decoders.tokens(config, length=LENGTH)
  padding = 4  # of the first row; the second has none
  segment_ids = jnp.ones_like(tokens).at[0, :padding].set(0)
  got = cached(model, tokens, (6, 2, 1), segment_ids)
  whole = fast.jit(model)
  assert_close(got[0, padding:], whole(tokens[:1, padding:])[0], 2e-5)
  assert_close(got[1], whole(tokens[1:])[0], 2e-5)


@names
def test_64_greedy_tokens_are_those_of_the_whole_row(name):
  config = decoders.config("llama", name, max_positions=80, **EXTRAS)
  model = decoders.decoder(config)
  prompt = decoders.tokens(config, length=5)

  @fast.jit
  def uncached(row):  # what stands behind a token does not reach it
    return model.logits(model(row))

  want = np.zeros((2, 69), np.int64)
  want[:, :5] = prompt
  for position in range(5, 69):
    want[:, position] = np.argmax(uncached(want)[:, position - 1], axis=-1)
  greedy = fast.jit(lambda p: generate(model, p, 64, temperature=0, key=jax.random.key(0)))
  np.testing.assert_array_equal(greedy(prompt), want)
  assert len(set(want[0, 5:])) > 3  # no fixed point of a model that ignores its input


def test_bfloat16_cache_is_bfloat16():
  config = decoders.config("llama", "attn_res", dtype="bfloat16", **EXTRAS)
  model = decoders.decoder(config)
  tokens = decoders.tokens(config, length=LENGTH)
  cache = model.empty_cache(2, LENGTH)
  assert {leaf.dtype for leaf in jax.tree.leaves(cache.past)} == {jnp.dtype("bfloat16")}
  assert_close(cached(model, tokens, (6, 1, 1, 1)).astype("float32"), model(tokens), 0.05)


def test_a_window_keeps_its_own_tokens_alone():
  config = decoders.config("llama", short_swa=ShortSWAConfig(window=4, num_heads=2))
  past = decoders.decoder(config).empty_cache(2, 20).past
  assert past["short_swa"].keys.shape == (3, 2, 3, 2, 8)
  assert past["attention"].keys.shape == past["attention"].values.shape == (3, 2, 20, 2, 4)


@pytest.mark.parametrize("size", [0, 33])
def test_sizes_that_no_row_has_are_refused(size):
  model = decoders.decoder(decoders.config())
  with pytest.raises(ValueError, match=rf"size={size} is out of range; allowed: 1..32 \(config"):
    model.empty_cache(1, size)
