"""Sampling text from a decoder."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int, Key, UInt32

from resjax.base import Array
from resjax.models.config import DecoderConfig
from resjax.models.decode_cache import DecodeCache
from resjax.models.decoder import Decoder


def generate(
  decoder: Decoder, prompt: Int[Array, "B P"], num_tokens: int, *,
  key: Key[Array, ""] | UInt32[Array, " 2"], lengths: Int[Array, " B"] | None = None,
  temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, stop: tuple[int, ...] = (),
) -> Int[Array, "B P+{num_tokens}"]:  # fmt: skip
  """Continues prompts by sampling p(v) ∝ exp(logit_v / temperature), token by token.

  The prompts run once and fill a cache; every later token runs alone. All of it is one compiled
  loop, which ends early when all rows have stopped.

  Args:
    decoder: the model.
    prompt: the tokens, P ≥ 1; shorter prompts have padding, of any token, on their left.
    num_tokens: how many tokens to append; P + num_tokens is at most the decoder's max_positions.
    key: the key of the random numbers.
    lengths: the number of tokens of each prompt without its padding, each in 1..P; None: P.
    temperature: the temperature; 0 takes the most probable token.
    top_k: k, only the k most probable tokens are sampled, see `restrict`; 0: all.
    top_p: p, of these only the most probable that sum to p, see `restrict`; 1: all.
    stop: the tokens that end a row; what follows in the row is the first of them, repeated.

  Returns:
    The tokens of prompts and continuations.

  Raises:
    ValueError: an empty prompt, a row that is too long, or an option out of range.
  """
  size = prompt.shape[1] + num_tokens
  _check(decoder.config, prompt.shape[1], num_tokens, temperature, top_k, top_p, stop)
  if num_tokens == 0:
    return prompt

  def choose(state: _State, hidden: Array) -> _State:
    logits = decoder.logits(hidden[:, -1])
    logits = restrict(logits / temperature if temperature else logits, top_k, top_p)
    if temperature == 0:
      token = jnp.argmax(logits, axis=-1)
    else:
      token = jax.random.categorical(jax.random.fold_in(key, state.length), logits)
    return state.extended(token, stop)

  def goes_on(state: _State) -> Array:
    return (state.length < size) & ~jnp.all(state.stopped)

  def body(state: _State) -> _State:
    token = lax.dynamic_slice_in_dim(state.rows, state.length - 1, 1, axis=1)
    hidden, cache = decoder.decode(token, state.cache)
    return choose(state._replace(cache=cache), hidden)

  state, hidden = _prefill(decoder, prompt, lengths, num_tokens, stop)
  return lax.while_loop(goes_on, body, choose(state, hidden)).rows


class _State(NamedTuple):
  """The state of the loop."""

  length: Array  # the number of tokens that are there, a scalar
  rows: Array  # the tokens [B, P + num_tokens]
  stopped: Array  # which rows have ended, bool [B]
  cache: DecodeCache

  def extended(self, token: Array, stop: tuple[int, ...]) -> "_State":
    """Returns the state with one more token [B] in every row."""
    stopped = self.stopped
    if stop:
      token = jnp.where(stopped, stop[0], token)
      stopped = stopped | jnp.isin(token, jnp.array(stop))
    token = token.astype(self.rows.dtype)
    rows = lax.dynamic_update_index_in_dim(self.rows, token, self.length, axis=1)
    return _State(self.length + 1, rows, stopped, self.cache)


def _prefill(
  decoder: Decoder,
  prompt: Array,
  lengths: Array | None,
  num_tokens: int,
  stop: tuple[int, ...],
) -> tuple[_State, Array]:
  """Returns the state after the prompts, and their hidden states [B, P, D]."""
  batch, start = prompt.shape
  lengths = jnp.full(batch, start) if lengths is None else lengths
  segment_ids = (jnp.arange(start)[None] >= start - lengths[:, None]).astype(jnp.int32)
  cache = decoder.empty_cache(batch, start + num_tokens - 1)
  hidden, cache = decoder.decode(prompt, cache, segment_ids)
  rest = jnp.full((batch, num_tokens), stop[0] if stop else 0, prompt.dtype)
  rows = jnp.concatenate([prompt, rest], axis=1)
  return _State(jnp.asarray(start), rows, jnp.zeros(batch, bool), cache), hidden


def restrict(
  logits: Float[Array, "*rows V"], top_k: int = 0, top_p: float = 1.0
) -> Float[Array, "*rows V"]:
  """Returns logits with -inf for tokens that are not to be sampled.

  The k largest logits stay; of these, the fewest largest whose probabilities (renormalised over the
  k) sum to at least p, hence always one. Logits equal to the smallest one that stays, stay too.

  Args:
    logits: the logits.
    top_k: k; 0: all.
    top_p: p; 1: all.

  Source: top-k: Fan et al., arXiv 1805.04833; top-p: Holtzman et al., arXiv 1904.09751.
  """
  if 0 < top_k < logits.shape[-1]:
    least = lax.top_k(logits, top_k)[0][..., -1:]
    logits = jnp.where(logits >= least, logits, -jnp.inf)
  if top_p < 1:
    falling = -jnp.sort(-logits, axis=-1)
    p = jax.nn.softmax(falling, axis=-1)
    before = jnp.cumsum(p, axis=-1) - p
    least = jnp.min(jnp.where(before < top_p, falling, jnp.inf), axis=-1, keepdims=True)
    logits = jnp.where(logits >= least, logits, -jnp.inf)
  return logits


def check_options(temperature: float, top_k: int, top_p: float) -> None:
  """Raises a ValueError if an option of `generate` is out of range."""
  if not 0 <= temperature < float("inf"):
    raise ValueError(f"temperature={temperature} must be 0 (greedy) or positive")
  if top_k < 0:
    raise ValueError(f"top_k={top_k} must be 0 (all tokens) or positive")
  if not 0 < top_p <= 1:
    raise ValueError(f"top_p={top_p} must be above 0, at most 1 (all tokens)")


def _check(
  config: DecoderConfig,
  start: int,
  num_tokens: int,
  temperature: float,
  top_k: int,
  top_p: float,
  stop: tuple[int, ...],
) -> None:
  longest = config.max_positions
  if not (start >= 1 and num_tokens >= 0 and start + num_tokens <= longest):
    raise ValueError(
      f"{start} prompt tokens + {num_tokens} new ones do not fit; the prompt needs at least one, "
      f"both together at most {longest}, the row length of the model"
    )
  for token in stop:
    if not 0 <= token < config.vocab_size:
      raise ValueError(f"stop={token} is no token; allowed: 0..{config.vocab_size - 1}")
  check_options(temperature, top_k, top_p)
