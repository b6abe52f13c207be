"""Decoding with a cache gives what the decoder gives for whole rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.kernels.self_attention import reference
from resjax.models.config import ShortSWAConfig
from resjax.models.sampling import generate
from resjax.testing.compare import assert_close
from tests.helpers import decoders, walks

EXTRAS = {
  "short_swa": ShortSWAConfig(window=3), "value_residual": "learned", "value_mixing": "depth",
}  # fmt: skip


def compiled(model, method="__call__"):
  graphdef, state = nnx.split(model)
  call = jax.jit(lambda state, *rest: getattr(nnx.merge(graphdef, state), method)(*rest))
  return functools.partial(call, state)


def cached(model, tokens, chunks, segment_ids):
  """Hidden states of all tokens, run in chunks of these lengths."""
  decode = compiled(model, "decode")
  cache, start, hidden = model.empty_cache(len(tokens), sum(chunks)), 0, []
  for count in chunks:
    part = slice(start, start + count)
    out, cache = decode(tokens[:, part], cache, segment_ids[:, part])
    hidden.append(out)
    start += count
  assert cache.length == tokens.shape[1]
  return jnp.concatenate(hidden, axis=1)


def cached_and_whole(config, chunks):
  """Hidden states of the same rows both ways; of the first the left half is padding."""
  model = decoders.decoder(config)
  tokens = decoders.tokens(config, length=sum(chunks))
  padding = tokens.shape[1] // 2
  segment_ids = jnp.ones_like(tokens).at[0, :padding].set(0)
  positions = jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)
  got = cached(model, tokens, chunks, segment_ids)
  want = compiled(model)(tokens, segment_ids, positions)
  return [(rows[0, padding:], rows[1]) for rows in (got, want)]


@walks.names("block_attn_res", "deep_delta", slow=("standard", "gate", "hyper_connections"))
def test_prefill_and_single_tokens_are_the_whole_row(name):
  assert_close(*cached_and_whole(decoders.config("llama", name, **EXTRAS), (6, 1, 1, 1)), 1e-5)


@walks.names("standard", "deep_delta")
def test_prefill_and_single_tokens_in_gpt2_style(name):
  assert_close(*cached_and_whole(decoders.config("gpt2", name), (6, 1, 1, 1)), 1e-5)


@pytest.mark.parametrize(
  "changes",
  [
    {"short_swa": ShortSWAConfig(1), "value_residual": "fixed"},
    {"short_swa": ShortSWAConfig(5, num_heads=2), "qk_norm": True, "depth": "loop"},
    {"short_swa": ShortSWAConfig(40), "value_residual": "learned", "num_layers": 1},
    {"residual": "attn_res", "options": {"views": "qk_v"}, "value_residual": "learned"},
  ],
)
@pytest.mark.slow
def test_attention_options_in_chunks_of_any_length(changes):
  assert_close(*cached_and_whole(decoders.config("llama", **changes), (5, 1, 2, 1)), 1e-5)


@walks.names("deep_delta")
@pytest.mark.slow
def test_64_greedy_tokens_are_those_of_the_whole_row(name):
  # A tied head that sees little else than its token would repeat it.
  options = {"max_positions": 80, "tied_embeddings": False, **EXTRAS}
  config = decoders.config("llama", name, **options)
  model = decoders.decoder(config)
  prompt = decoders.tokens(config, batch=6, length=5)

  @jax.jit
  def uncached(row):  # what stands behind a token does not reach it
    return model.logits(model(row))

  want = np.zeros((6, 69), np.int64)
  want[:, :5] = prompt
  for position in range(5, 69):
    want[:, position] = np.argmax(uncached(want)[:, position - 1], axis=-1)
  greedy = jax.jit(lambda p: generate(model, p, 64, temperature=0, key=jax.random.key(0)))
  np.testing.assert_array_equal(greedy(prompt), want)
  # No fixed point of a model that ignores its input.
  assert max(len(set(row)) for row in want[:, 5:]) > 3


@pytest.mark.slow
def test_bfloat16_cache_is_bfloat16():
  config = decoders.config("llama", "attn_res", dtype="bfloat16", **EXTRAS)
  cache = decoders.decoder(config).empty_cache(2, 4)
  assert {leaf.dtype for leaf in jax.tree.leaves(cache.past)} == {jnp.dtype("bfloat16")}
  got, want = cached_and_whole(config, (3, 1))
  assert_close(jax.tree.map(np.float32, got), jax.tree.map(np.float32, want), 0.05)


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


# 1 for a token, 0 for padding, of rows in four calls: padding behind, before and among tokens, rows
# that begin later and that rest.
RAGGED = (
  ((1, 1, 1, 0, 0), (0, 0, 1, 1, 1), (0, 0, 0, 0, 0), (1, 0, 1, 0, 1)),
  ((1, 0, 0), (1, 1, 1), (0, 1, 1), (0, 0, 0)),
  ((1,), (0,), (1,), (1,)),
  ((0, 1), (1, 1), (1, 0), (1, 1)),
)


def ragged_and_alone(config):
  """Hidden states of the tokens of each row: from ragged calls, and of the row by itself."""
  model = decoders.decoder(config)
  ids = np.concatenate(RAGGED, axis=1)
  tokens = np.asarray(decoders.tokens(config, batch=len(ids), length=ids.shape[1]))
  got = np.asarray(cached(model, tokens, [len(chunk[0]) for chunk in RAGGED], jnp.asarray(ids)))
  counts = ids.sum(axis=1)
  rows = np.zeros_like(tokens)
  for row, real, own in zip(rows, ids, tokens, strict=True):
    row[: real.sum()] = own[real == 1]
  segments = (np.arange(rows.shape[1]) < counts[:, None]).astype(np.int32)
  want = np.asarray(compiled(model)(jnp.asarray(rows), jnp.asarray(segments)))
  pairs = zip(got, want, ids, counts, strict=True)
  return zip(*((g[real == 1], w[:count]) for g, w, real, count in pairs), strict=True)


SHORT_SIGHTED = {"windows": (2, 0, 3), "short_swa": ShortSWAConfig(window=3)}


@walks.names("standard", "deep_delta", slow=("attn_res", "hyper_connections", "muddformer"))
def test_rows_of_any_padding_are_the_rows_alone(name):
  assert_close(*ragged_and_alone(decoders.config("llama", name, **SHORT_SIGHTED)), 1e-5)


@pytest.mark.parametrize(
  "changes",
  [
    {"residual": "deep_delta", "options": {"compressor": "token"}},
    {"short_swa": ShortSWAConfig(40), "value_residual": "learned", "value_mixing": "depth"},
    {"windows": (2, 5, 0), "attention_softcap": 5.0, "depth": "loop", "style": "gpt2"},
  ],
)
def test_rows_of_any_padding_with_other_options(changes, monkeypatch):
  monkeypatch.setattr(reference, "_CHUNK", 2)  # the queries of a call in several chunks
  assert_close(*ragged_and_alone(decoders.config(**changes)), 1e-5)


def test_tokens_that_do_not_fit_are_refused():
  model = decoders.decoder(decoders.config())
  tokens = jnp.ones((1, 3), jnp.int32)
  message = "3 tokens, padding included, do not fit into a cache of 5 slots of which 3 are filled"
  with pytest.raises(ValueError, match=message):
    model.decode(tokens, model.decode(tokens, model.empty_cache(1, 5))[1])


def temporary_bytes(length, chunk):
  """Temporary memory of a prefill of `length` tokens, of which the last `chunk` are one call."""
  config = decoders.config("llama", max_positions=4096, short_swa=ShortSWAConfig(window=3))
  model = decoders.decoder(config)

  def prefill(state, tokens):
    model = nnx.merge(graphdef, state)
    cache = model.empty_cache(1, length)
    if chunk < length:
      _, cache = model.decode(tokens[:, :-chunk], cache)
    return model.decode(tokens[:, -chunk:], cache)

  graphdef, state = nnx.split(model)
  tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
  compiled = jax.jit(prefill).lower(state, tokens).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.slow
def test_memory_of_a_prefill_is_linear_in_the_prompt(parts):
  one, two, four = (temporary_bytes(length, length // parts) for length in (1024, 2048, 4096))
  assert two / one <= 2.2 and four / two <= 2.2, (one, two, four)
