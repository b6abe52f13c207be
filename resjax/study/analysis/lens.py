"""The logit lens: what hidden states predict, and how they lie to the embeddings of two tokens."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.base import Array, wide_dtype
from resjax.base.sharding import Layout
from resjax.models import Decoder
from resjax.study.analysis.alignment import STATE_METRICS

# The tokens whose rank and probability the lens gives: the token at a position, the next one, and
# one that is drawn at random.
CANDIDATES = ("input", "next", "shuffled")
_PER_CANDIDATE = ("rank", "log_rank", "probability", "nats", "first")
PER_TOKEN = (
  *(f"{name}_{metric}" for name in CANDIDATES for metric in _PER_CANDIDATE),
  "entropy",
  *STATE_METRICS,
)


class LensInputs(NamedTuple):
  """The arrays that the lens reads for one batch.

  Attributes:
    ids: the `CANDIDATES` of each token [3, B, T].
    weights: the weight of each token in each group [G, B, T].
    embeddings: the input embeddings of the tokens and the output embeddings of the next ones,
      [B, T, D] each.
    norm: the parameters of the final norm.
    head: the output embedding, transposed [D, V], in the dtype of the activations.
  """

  ids: Array
  weights: Array
  embeddings: tuple[Array, Array]
  norm: list[Array]
  head: Array


class Lens:
  """The prediction softmax(head · final_norm(h)) of hidden states h, made by the decoder itself.

  Logits exist for one chunk of tokens at a time. A chunk has every n-th position of every row, so
  that the batch and token axes stay split over devices as they are.

  Args:
    decoder: the decoder; the arrays of its head and norm are taken by `inputs`.
    chunk_size: the number of tokens of one shard whose logits exist at a time.
  """

  def __init__(self, decoder: Decoder, chunk_size: int):
    graphdef, state = nnx.split(decoder.final_norm)
    self._graphdef, self._tree = graphdef, jax.tree.structure(state)
    self._decoder = decoder
    self._chunk_size = chunk_size

  def inputs(self, ids: Array, weights: Array) -> LensInputs:
    """Returns the arrays for a batch, given `ids` and `weights`; the head is gathered once."""
    decoder = self._decoder
    dtype, constrain = decoder.config.dtype, decoder.layout.constrain

    def embedded(table: Array, index: Array) -> Array:
      found = jnp.take(constrain(table, "vocab", "embed"), index, axis=0).astype(dtype)
      return constrain(found, "batch", "tokens", "embed")

    # The head is cast and transposed while it is split over devices: compilers keep more copies of
    # it if it is gathered first.
    head = constrain(decoder.head.astype(dtype).T, "embed_param", "vocab")
    return LensInputs(
      ids=ids,
      weights=weights,
      embeddings=(embedded(decoder.embed.embedding[...], ids[0]), embedded(decoder.head, ids[1])),
      norm=jax.tree.leaves(nnx.state(decoder.final_norm)),
      head=constrain(head, None, "vocab"),
    )

  def normed(self, hidden: Array, inputs: LensInputs) -> Array:
    """Returns final_norm(h) [..., D] for h [..., D]."""
    return nnx.merge(self._graphdef, jax.tree.unflatten(self._tree, inputs.norm))(hidden)

  def logits(self, normed: Array, inputs: LensInputs) -> Array:
    """Returns logits [..., V] of normalised hidden states [..., D]."""
    return self._decoder.logits(normed, inputs.head.T)

  def sums(self, hidden: Array, inputs: LensInputs) -> Array:
    """Returns the sums of the K metrics `PER_TOKEN` over the tokens of each row and group.

    Args:
      hidden: the hidden states [B, T, D].
      inputs: the arrays of the batch.

    Returns:
      The sums, float32 [K, G, B].
    """
    chunks = num_chunks(hidden.shape[:2], self._chunk_size, self._decoder.layout)

    def body(total: Array, index: Array) -> tuple[Array, None]:
      states, *embeddings = (chunk(a, 1, chunks, index) for a in (hidden, *inputs.embeddings))
      normed = self.normed(states, inputs)
      ids = chunk(inputs.ids, 2, chunks, index)
      found = _prediction(self.logits(normed, inputs), ids) | _geometry(states, normed, *embeddings)
      values = jnp.stack([found[name] for name in PER_TOKEN])
      weights = chunk(inputs.weights, 2, chunks, index)
      return total + grouped(jnp.where(weights[0] > 0, values, 0.0), weights), None

    shape = len(PER_TOKEN), inputs.weights.shape[0], hidden.shape[0]
    return lax.scan(body, jnp.zeros(shape), jnp.arange(chunks))[0]


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
    final: the normalised states after the last layer [B, S, D].
    states: the normalised states at P depth positions [P, B, S, D].
    weights: the weight of each token in each group [G, B, S].
    chunk_size: the number of tokens of one shard in a chunk.
    layout: how B and S are split over devices.

  Returns:
    The sums, float32 [P, G, B].
  """
  chunks = num_chunks(final.shape[:2], chunk_size, layout)

  def body(total: Array, index: Array) -> tuple[Array, None]:
    last = jax.nn.log_softmax(logits(chunk(final, 1, chunks, index)))
    own = chunk(weights, 2, chunks, index)

    def position(_: None, state: Array) -> tuple[None, Array]:
      log_p = jax.nn.log_softmax(logits(chunk(state, 1, chunks, index)))
      kl = jnp.sum(jnp.exp(last) * (last - log_p), axis=-1)
      return None, grouped(jnp.where(own[0] > 0, kl, 0.0), own)

    return total + lax.scan(position, None, states)[1], None

  shape = states.shape[0], *weights.shape[:2]
  return lax.scan(body, jnp.zeros(shape), jnp.arange(chunks))[0]


def grouped(values: Array, weights: Array) -> Array:
  """Returns Σ_t values · weights [..., G, B], given values [..., B, T] and weights [G, B, T]."""
  return jnp.einsum("...bt,gbt->...gb", values, weights, precision=lax.Precision.HIGHEST)


def num_chunks(shape: tuple[int, ...], chunk_size: int, layout: Layout) -> int:
  """Returns the number of chunks of [B, T] tokens, a divisor of T on each shard.

  Args:
    shape: (B, T).
    chunk_size: the most tokens of one shard in a chunk, which has one position of a row or more.
    layout: how B and T are split over devices.
  """
  rows, length = shape
  if length % layout.num_shards("tokens") == 0:
    length //= layout.num_shards("tokens")
  if rows % layout.num_shards("batch") == 0:
    rows //= layout.num_shards("batch")
  fits = max(1, chunk_size // rows)
  return next(n for n in range(1, length + 1) if length % n == 0 and length // n <= fits)


def chunk(x: Array, axis: int, chunks: int, index: Array | int) -> Array:
  """Returns the positions index, index + chunks, ... of an axis."""
  shape = (*x.shape[:axis], x.shape[axis] // chunks, chunks, *x.shape[axis + 1 :])
  return lax.dynamic_index_in_dim(x.reshape(shape), index, axis + 1, keepdims=False)


def _prediction(logits: Array, ids: Array) -> dict[str, Array]:
  """Returns the metrics of the candidates and the entropy of the prediction, [B, t] each.

  Ranks count from 1, the best rank of a tie; they are V + 1 where logits are NaN.

  Args:
    logits: [B, t, V].
    ids: the candidates [3, B, t].
  """
  # Arrays as large as the logits are used in sums alone, so that compilers need not store them.
  normaliser = jax.nn.logsumexp(logits, axis=-1)
  p = jnp.exp(logits - normaliser[..., None])
  found = {"entropy": jnp.sum(p * (normaliser[..., None] - logits), axis=-1)}
  numbers = jnp.arange(logits.shape[-1], dtype=ids.dtype)
  for name, token in zip(CANDIDATES, ids, strict=True):
    # This is a comparison, not a gather, because V may be split over devices.
    own = jnp.sum(jnp.where(numbers == token[..., None], logits, 0.0), axis=-1)
    rank = 1.0 + jnp.sum(jnp.where(logits <= own[..., None], 0.0, 1.0), axis=-1)
    found |= {
      f"{name}_rank": rank,
      f"{name}_log_rank": jnp.log(rank),
      f"{name}_probability": jnp.exp(own - normaliser),
      f"{name}_nats": normaliser - own,
      f"{name}_first": (rank == 1).astype(rank.dtype),
    }
  return found


def _geometry(hidden: Array, normed: Array, input_row: Array, next_row: Array) -> dict[str, Array]:
  """Returns `STATE_METRICS`, [B, t] each, given h, final_norm(h), e and u, [B, t, D] each."""
  wide = wide_dtype(hidden)
  h, n, e, u = (x.astype(wide) for x in (hidden, normed, input_row, next_row))
  e, u = _unit(e), _unit(u)
  along_e, along_u = _dot(h, e), _dot(h, u)
  rest = u - _dot(u, e)[..., None] * e
  # If e and u are equal up to rounding, they span a line.
  spans = _dot(rest, rest) > 1e-6
  along_rest = jnp.where(spans, _dot(h, _unit(rest)), 0.0)
  return {
    "cosine_input": _dot(_unit(h), e),
    "cosine_next": _dot(_unit(h), u),
    "cosine_input_normed": _dot(_unit(n), e),
    "cosine_next_normed": _dot(_unit(n), u),
    "projection_input": along_e,
    "projection_next": along_u,
    "energy_share": (along_e**2 + along_rest**2) / jnp.maximum(_dot(h, h), 1e-30),
    "hidden_norm": jnp.sqrt(_dot(h, h)),
  }


def _dot(x: Array, y: Array) -> Array:
  return jnp.sum(x * y, axis=-1)


def _unit(x: Array) -> Array:
  return x * lax.rsqrt(jnp.maximum(_dot(x, x), 1e-30))[..., None]
