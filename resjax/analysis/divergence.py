"""How far the predictions along depth are from the last one."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from resjax.analysis.lens import chunk, grouped, num_chunks
from resjax.sharding import Layout
from resjax.typing import Array


def kl_sums(
  logits: Callable[[Array], Array],
  final: Array,
  states: Array,
  weights: Array,
  chunk_size: int,
  layout: Layout,
) -> Array:
  """Returns Σ KL(softmax(final) ‖ softmax(state)) over the tokens of each row and group, in nats.

  Logits of the final states and of one depth position exist for one chunk of tokens at a time.

  Args:
    logits: maps normalised states [..., D] to logits [..., V].
    final: normalised states after the last layer [B, S, D].
    states: those at P depth positions [P, B, S, D].
    weights: of the tokens in every group [G, B, S].
    chunk_size: tokens of one shard in a chunk.
    layout: how B and S are split.

  Returns:
    float32 [P, G, B].
  """
  chunks = num_chunks(final.shape[:2], chunk_size, layout)

  def body(total, index):
    last = jax.nn.log_softmax(logits(chunk(final, 1, chunks, index)))
    own = chunk(weights, 2, chunks, index)

    def position(_, state):
      log_p = jax.nn.log_softmax(logits(chunk(state, 1, chunks, index)))
      kl = jnp.sum(jnp.exp(last) * (last - log_p), axis=-1)
      return None, grouped(jnp.where(own[0] > 0, kl, 0.0), own)

    return total + lax.scan(position, None, states)[1], None

  shape = states.shape[0], *weights.shape[:2]
  return lax.scan(body, jnp.zeros(shape), jnp.arange(chunks))[0]
