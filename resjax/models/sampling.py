"""Sampling text from a decoder."""

import jax
import jax.numpy as jnp

from resjax.models.decoder import Decoder
from resjax.typing import Array


def generate(
  decoder: Decoder,
  prompt: Array,
  num_tokens: int,
  *,
  temperature: float = 1.0,
  key: Array,
) -> Array:
  """Continues prompts by sampling p(v) ∝ exp(logit_v / temperature), token by token.

  Every token runs the decoder over the whole row, O(T) row passes; there is no cache.

  Args:
    decoder: the model.
    prompt: tokens [B, P], P ≥ 1, all of one length.
    num_tokens: how many to append; P + num_tokens is at most the decoder's max_positions.
    temperature: 0 takes the most probable token.
    key: of the random numbers.

  Returns:
    [B, P + num_tokens].

  Raises:
    ValueError: an empty prompt, a row that is too long, or a negative temperature.
  """
  batch, start = prompt.shape
  longest = decoder.config.max_positions
  if not (start >= 1 and num_tokens >= 0 and start + num_tokens <= longest):
    raise ValueError(
      f"{start} prompt tokens + {num_tokens} new ones do not fit; the prompt needs at least one, "
      f"both together at most {longest} (config.data.seq_len)"
    )
  if temperature < 0:
    raise ValueError(f"temperature={temperature} must be 0 (greedy) or positive")

  def body(position, row):
    hidden = decoder(row)
    logits = decoder.logits(jax.lax.dynamic_index_in_dim(hidden, position - 1, 1, keepdims=False))
    if temperature == 0:
      token = jnp.argmax(logits, axis=-1)
    else:
      token = jax.random.categorical(jax.random.fold_in(key, position), logits / temperature)
    return jax.lax.dynamic_update_index_in_dim(row, token.astype(row.dtype), position, 1)

  row = jnp.concatenate([prompt, jnp.zeros((batch, num_tokens), prompt.dtype)], axis=1)
  return jax.lax.fori_loop(start, start + num_tokens, body, row)
