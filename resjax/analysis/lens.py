"""What hidden states say of their token and the next one: the logit lens, and their geometry."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.analysis.alignment import STATE_METRICS
from resjax.models.decoder import Decoder
from resjax.sharding import Layout
from resjax.typing import Array, wide_dtype

ASKED = ("input", "next", "foil")
LENS = ("rank", "log_rank", "probability", "nats", "first")
PER_TOKEN = (
  *(f"{name}_{what}" for name in ASKED for what in LENS),
  "entropy",
  *STATE_METRICS,
)


class Seen(NamedTuple):
  """The arrays that the lens reads.

  Attributes:
    ids: tokens to ask about [3, B, T], see `ASKED`.
    weights: of the tokens in every group [G, B, T].
    rows: input embedding of the token, output embedding of the next, [B, T, D] each.
    norm: parameters of the final norm.
    head: output embedding, transposed [D, V], in the dtype of the activations.
  """

  ids: Array
  weights: Array
  rows: tuple[Array, Array]
  norm: list[Array]
  head: Array


class Lens:
  """softmax(head · final_norm(h)) of hidden states h, by the decoder's own norm and logits.

  Logits exist for one chunk of tokens at a time, every n-th position of every row, so that batch
  and token axes stay split over devices as they are. The numbers of positions of a chunk divide T.

  Args:
    decoder: its config, layout and norm are looked at; arrays are in what `seen` returns.
    chunk_size: tokens of one shard whose logits exist at one time.
  """

  def __init__(self, decoder: Decoder, chunk_size: int):
    graphdef, state = nnx.split(decoder.final_norm)
    self._graphdef, self._tree = graphdef, jax.tree.structure(state)
    self._decoder = decoder
    self._chunk_size = chunk_size

  def seen(self, ids: Array, weights: Array) -> Seen:
    """Returns the arrays for a batch; the head is gathered once.

    Args:
      ids: see `Seen`.
      weights: see `Seen`.
    """
    decoder = self._decoder
    dtype, constrain = decoder.config.dtype, decoder.layout.constrain

    def rows(table, index):
      found = jnp.take(constrain(table, "vocab", "embed"), index, axis=0).astype(dtype)
      return constrain(found, "batch", "tokens", "embed")

    # Cast and turned while it is split: gathered otherwise, compilers keep more copies of it.
    head = constrain(decoder.head.astype(dtype).T, "embed_param", "vocab")
    return Seen(
      ids=ids,
      weights=weights,
      rows=(rows(decoder.embed.embedding[...], ids[0]), rows(decoder.head, ids[1])),
      norm=jax.tree.leaves(nnx.state(decoder.final_norm)),
      head=constrain(head, None, "vocab"),
    )

  def normed(self, hidden: Array, seen: Seen) -> Array:
    """Returns final_norm(h) [..., D] for h [..., D]."""
    return nnx.merge(self._graphdef, jax.tree.unflatten(self._tree, seen.norm))(hidden)

  def logits(self, normed: Array, seen: Seen) -> Array:
    """Returns logits [..., V] of normalised hidden states [..., D]."""
    return self._decoder.logits(normed, seen.head.T)

  def sums(self, hidden: Array, seen: Seen) -> Array:
    """Returns Σ over the tokens of each row and group of `PER_TOKEN`, float32 [K, G, B].

    Args:
      hidden: [B, T, D].
      seen: the batch.
    """
    chunks = num_chunks(hidden.shape[:2], self._chunk_size, self._decoder.layout)

    def body(total, index):
      part = [
        chunk(a, axis, chunks, index)
        for a, axis in ((hidden, 1), (seen.ids, 2), (seen.rows[0], 1), (seen.rows[1], 1))
      ]
      found = self._per_token(*part, seen)
      values = jnp.stack([found[name] for name in PER_TOKEN])
      weights = chunk(seen.weights, 2, chunks, index)
      return total + grouped(jnp.where(weights[0] > 0, values, 0.0), weights), None

    shape = len(PER_TOKEN), seen.weights.shape[0], hidden.shape[0]
    return lax.scan(body, jnp.zeros(shape), jnp.arange(chunks))[0]

  def _per_token(self, hidden, ids, input_row, next_row, seen) -> dict[str, Array]:
    normed = self.normed(hidden, seen)
    found = _lens(self.logits(normed, seen), ids)
    return found | _geometry(hidden, normed, input_row, next_row)


def grouped(values: Array, weights: Array) -> Array:
  """Returns Σ_t values · weights [..., G, B], for values [..., B, T] and weights [G, B, T]."""
  return jnp.einsum("...bt,gbt->...gb", values, weights, precision=lax.Precision.HIGHEST)


def num_chunks(shape: tuple[int, int], chunk_size: int, layout: Layout) -> int:
  """Returns into how many chunks [B, T] tokens are cut, a divisor of T on each shard.

  Args:
    shape: (B, T).
    chunk_size: tokens of one shard in a chunk; at least one position of every row.
    layout: how B and T are split.
  """
  rows, length = shape
  if length % layout.num_shards("tokens") == 0:
    length //= layout.num_shards("tokens")
  if rows % layout.num_shards("batch") == 0:
    rows //= layout.num_shards("batch")
  fits = max(1, chunk_size // rows)
  return next(n for n in range(1, length + 1) if length % n == 0 and length // n <= fits)


def chunk(x: Array, axis: int, chunks: int, index: Array | int) -> Array:
  """Returns positions index, index + chunks, ... of an axis."""
  shape = (*x.shape[:axis], x.shape[axis] // chunks, chunks, *x.shape[axis + 1 :])
  return lax.dynamic_index_in_dim(x.reshape(shape), index, axis + 1, keepdims=False)


def _lens(logits: Array, ids: Array) -> dict[str, Array]:
  """`LENS` of ids [3, B, t] and the entropy, from logits [B, t, V].

  Ranks count from 1, best of ties; V + 1 where logits are NaN.
  """
  # What has the size of the logits is used in sums alone, so that it need not exist beside them.
  normaliser = jax.nn.logsumexp(logits, axis=-1)
  p = jnp.exp(logits - normaliser[..., None])
  found = {"entropy": jnp.sum(p * (normaliser[..., None] - logits), axis=-1)}
  numbers = jnp.arange(logits.shape[-1], dtype=ids.dtype)
  for name, token in zip(ASKED, ids, strict=True):
    # A comparison, not a gather: V may be split over devices.
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


def _geometry(hidden, normed, input_row, next_row) -> dict[str, Array]:
  """Directions and lengths of h and final_norm(h), all [B, t, D]."""
  wide = wide_dtype(hidden)
  h, n, e, u = (x.astype(wide) for x in (hidden, normed, input_row, next_row))
  e, u = _unit(e), _unit(u)
  along_e, along_u = _dot(h, e), _dot(h, u)
  rest = u - _dot(u, e)[..., None] * e
  # Equal up to rounding, e and u span a line.
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
