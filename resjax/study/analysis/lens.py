"""The logit lens: what hidden states predict, and how they lie to the embeddings of two tokens."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree, wide_dtype
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

_CACHED_LOGITS = 2**19  # of one shard, on CPUs


class LensInputs(NamedTuple):
  """The arrays that the lens reads for one batch.

  Attributes:
    ids: the `CANDIDATES` of each token [3, B, T].
    weights: the weight of each token in each group [G, B, T].
    embeddings: the input embeddings of the tokens [B, T, D].
    rows: the output embeddings of the candidates [B, T, 3, D].
    norm: the parameters of the final norm.
    head: the output embedding, transposed [D, V], in the dtype of the activations.
  """

  ids: Array
  weights: Array
  embeddings: Array
  rows: Array
  norm: list[Array]
  head: Array


class _Softmax(NamedTuple):
  """Sums over the part of the vocabulary that has been seen, with weights e = exp(logit − peak).

  Attributes:
    peak: the largest logit, [...] as all others.
    total: Σ e.
    weighted: Σ e x for some value x of every word.
  """

  peak: Array
  total: Array
  weighted: Array

  @classmethod
  def of_nothing(cls, shape: tuple[int, ...], dtype: jnp.dtype) -> "_Softmax":
    """Returns the sums over no word."""
    return cls(jnp.full(shape, -jnp.inf, dtype), *[jnp.zeros(shape, dtype)] * 2)

  def with_words(self, logits: Array, x: Array, new: Array) -> "_Softmax":
    """Returns the sums with more words, given their logits and x [..., v] and which are new [v]."""
    peak = jnp.maximum(self.peak, jnp.max(logits, axis=-1))
    faded = jnp.exp(self.peak - peak)
    e = jnp.where(new, jnp.exp(logits - peak[..., None]), 0.0)
    total = faded * self.total + jnp.sum(e, axis=-1)
    return _Softmax(peak, total, faded * self.weighted + jnp.sum(e * x, axis=-1))

  def nats(self, logit: Array) -> Array:
    """Returns log Σ exp(logits) − logit, in which large logits do not round small differences."""
    return (self.peak - logit) + jnp.log(self.total)

  def mean(self) -> Array:
    """Returns the mean of x under the prediction."""
    return self.weighted / self.total


class Lens:
  """The prediction softmax(head · final_norm(h)) of hidden states h, made by the decoder itself.

  Logits exist for one chunk of tokens and one part of the vocabulary at a time, which is small
  enough on CPUs to stay in their caches until everything that is measured has been summed. A chunk
  has every n-th position of every row, so that the batch and token axes stay split over devices as
  they are.

  Args:
    decoder: the decoder; the arrays of its head and norm are taken by `inputs`.
    chunk_size: the number of tokens of one shard whose logits exist at a time.
    words: the number of words of one shard whose logits exist at a time; 0: as many as the caches
      of a CPU hold, and all of them on other devices.
  """

  def __init__(self, decoder: Decoder, chunk_size: int, words: int = 0):
    graphdef, state = nnx.split(decoder.final_norm)
    self._graphdef, self._tree = graphdef, jax.tree.structure(state)
    self._decoder = decoder
    self._chunk_size = chunk_size
    on_cpu = decoder.layout.platform == "cpu"
    every = decoder.config.vocab_size
    self._words = words or (max(1, _CACHED_LOGITS // chunk_size) if on_cpu else every)

  def inputs(self, ids: Array, weights: Array) -> LensInputs:
    """Returns the arrays for a batch, given `ids` and `weights`; the head is gathered once."""
    decoder = self._decoder
    dtype, constrain = decoder.config.dtype, decoder.layout.constrain

    def embedded(table: Array, index: Array) -> Array:
      return jnp.take(constrain(table, "vocab", "embed"), index, axis=0).astype(dtype)

    # The head is cast and transposed while it is split over devices: compilers keep more copies of
    # it if it is gathered first.
    head = constrain(decoder.head.astype(dtype).T, "embed_param", "vocab")
    return LensInputs(
      ids=ids,
      weights=weights,
      embeddings=constrain(
        embedded(decoder.embed.embedding[...], ids[0]), "batch", "tokens", "embed"
      ),
      rows=constrain(
        embedded(decoder.head, jnp.moveaxis(ids, 0, -1)), "batch", "tokens", None, "embed"
      ),
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
      states, embedded, rows = (
        chunk(a, 1, chunks, index) for a in (hidden, inputs.embeddings, inputs.rows)
      )
      normed = self.normed(states, inputs)
      found = self._prediction(normed, rows, chunk(inputs.ids, 2, chunks, index), inputs.head)
      found |= _geometry(states, normed, embedded, rows[:, :, CANDIDATES.index("next")])
      values = jnp.stack([found[name] for name in PER_TOKEN])
      weights = chunk(inputs.weights, 2, chunks, index)
      return total + grouped(jnp.where(weights[0] > 0, values, 0.0), weights), None

    shape = len(PER_TOKEN), inputs.weights.shape[0], hidden.shape[0]
    return lax.scan(body, jnp.zeros(shape), jnp.arange(chunks))[0]

  def kl_sums(self, final: Array, states: Array, weights: Array, inputs: LensInputs) -> Array:
    """Returns Σ KL(softmax(final) ‖ softmax(state)) over the tokens of each row and group, in nats.

    Args:
      final: the normalised states after the last layer [B, S, D].
      states: the normalised states at P depth positions [P, B, S, D].
      weights: the weight of each token in each group [G, B, S].
      inputs: the arrays of the batch.

    Returns:
      The sums, float32 [P, G, B].
    """
    chunks = num_chunks(final.shape[:2], self._chunk_size, self._decoder.layout)

    def body(total: Array, index: Array) -> tuple[Array, None]:
      last, some = chunk(final, 1, chunks, index), chunk(states, 2, chunks, index)
      own = chunk(weights, 2, chunks, index)

      def words(found: tuple[_Softmax, _Softmax], head: Array, _: Array, new: Array) -> PyTree:
        of_last = self._decoder.logits(last, head)

        def position(_: None, one: tuple[Array, _Softmax, _Softmax]) -> tuple[None, PyTree]:
          state, before, other = one
          logits = self._decoder.logits(state, head)
          return None, (
            before.with_words(of_last, of_last - logits, new),
            other.with_words(logits, logits, new),
          )

        return lax.scan(position, None, (some, *found))[1]

      start = _Softmax.of_nothing(some.shape[:-1], wide_dtype(some))
      truth, lens = self._over_vocabulary(words, (start, start), inputs.head)
      kl = truth.mean() + lens.nats(truth.peak) - truth.nats(truth.peak)
      return total + grouped(jnp.where(own[0] > 0, kl, 0.0), own), None

    shape = states.shape[0], *weights.shape[:2]
    return lax.scan(body, jnp.zeros(shape), jnp.arange(chunks))[0]

  def _prediction(self, normed: Array, rows: Array, ids: Array, head: Array) -> dict[str, Array]:
    """Returns the metrics of the candidates and the entropy of the prediction, [B, t] each.

    Ranks count from 1, the best rank of a tie; they are V + 1 where logits are NaN.

    Args:
      normed: the normalised states [B, t, D].
      rows: the output embeddings of the candidates [B, t, 3, D].
      ids: the candidates [3, B, t].
      head: the output embedding, transposed [D, V].
    """
    own = jnp.moveaxis(jax.vmap(jax.vmap(self._exact_logits))(normed, rows), -1, 0)
    # The mean of logits is taken of what they are above one of them, which keeps small differences.
    origin = own[CANDIDATES.index("next")]

    def words(found: PyTree, head: Array, numbers: Array, new: Array) -> PyTree:
      softmax, above = found
      logits = self._exact_logits(normed, head)
      # A token is not before itself, however its logit was rounded here and above.
      before = [
        jnp.where((logits <= mine[..., None]) | (numbers == token[..., None]) | ~new, 0.0, 1.0)
        for mine, token in zip(own, ids, strict=True)
      ]
      softmax = softmax.with_words(logits, logits - origin[..., None], new)
      return softmax, above + jnp.stack([jnp.sum(some, axis=-1) for some in before])

    start = _Softmax.of_nothing(origin.shape, origin.dtype), jnp.zeros(own.shape)
    softmax, above = self._over_vocabulary(words, start, head)
    found = {"entropy": softmax.nats(origin) - softmax.mean()}
    for name, mine, count in zip(CANDIDATES, own, above, strict=True):
      # The peak is the logit of a token that none is before, however it was rounded above.
      nats = softmax.nats(jnp.where(count == 0, softmax.peak, mine))
      rank = 1.0 + jnp.where(jnp.isnan(mine), float(head.shape[1]), count)
      found |= {
        f"{name}_rank": rank,
        f"{name}_log_rank": jnp.log(rank),
        f"{name}_probability": jnp.exp(-nats),
        f"{name}_nats": nats,
        f"{name}_first": (rank == 1).astype(rank.dtype),
      }
    return found

  def _exact_logits(self, normed: Array, head: Array) -> Array:
    """Returns the logits [..., v] of words whose embeddings are rows of `head` [v, D].

    Accelerators round the factors of large float32 products, and not those of small ones. A token
    is ranked by its own logit among those of all words, so that both are made without.
    """
    exact = "highest" if normed.dtype == jnp.float32 else None
    with jax.default_matmul_precision(exact):
      return self._decoder.logits(normed, head)

  def _over_vocabulary(self, add: Callable[..., PyTree], start: PyTree, head: Array) -> PyTree:
    """Returns what is found from the whole vocabulary, part by part.

    Args:
      add: add(found, rows of the head [v, D], their numbers [v], which were not seen before [v])
        returns what is found with these words, too.
      start: what is found without any word.
      head: the output embedding, transposed [D, V].
    """
    layout, (width, size) = self._decoder.layout, head.shape
    # Every part has the same words of each shard, so that V stays split over devices.
    shards = layout.num_shards("vocab") if size % layout.num_shards("vocab") == 0 else 1
    size //= shards
    part = min(self._words, size)
    parts = head if shards == 1 else head.reshape(width, shards, size)

    def body(found: PyTree, index: Array) -> tuple[PyTree, None]:
      first = jnp.minimum(index * part, size - part)  # the last part may overlap the one before
      places = jnp.broadcast_to(first + jnp.arange(part), (shards, part))
      numbers = places + size * jnp.arange(shards)[:, None]
      rows = lax.dynamic_slice_in_dim(parts, first, part, axis=-1).reshape(width, -1).T
      return add(found, rows, numbers.ravel(), (places >= index * part).ravel()), None

    return lax.scan(body, start, jnp.arange(-(-size // part)))[0]


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
