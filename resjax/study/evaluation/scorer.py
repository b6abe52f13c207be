"""The probability that a decoder gives to each of some tokens, and whether it would choose it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree
from resjax.models import Decoder
from resjax.study.evaluation.buckets import batches, fine_sizes, fitting


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
  """A row of tokens, the last of which are scored.

  Attributes:
    tokens: a context and the tokens that are scored, two or more in all.
    first: the index of the first token that is scored, 1 or more; all later ones are scored too.
  """

  tokens: Sequence[int] | np.ndarray
  first: int = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
  """What a decoder says of the scored tokens of one row.

  Attributes:
    log_probs: the natural logarithm of the probability of each, float32.
    greedy: whether each has the largest logit of all tokens, bool; of equal ones the first counts.
  """

  log_probs: np.ndarray
  greedy: np.ndarray

  @property
  def log_prob(self) -> float:
    """The logarithm of the probability of all targets together, summed in float64."""
    return float(np.sum(self.log_probs, dtype=np.float64))


class Scorer:
  """Scores rows of any length with few compiled programs, one for each bucket of lengths.

  A bucket has rows of 64, 128, 256, ... tokens, see `buckets.fine_sizes`, and which one a row falls
  into follows from its own length alone. A row stands in its bucket by itself, with padding in a
  segment of its own behind, so that its result depends neither on the other rows of a batch nor on
  their number. All logits never exist together: the output head runs in chunks, and only where a
  token is scored.

  In several processes all of them call `score` with the same rows, and get the same result.

  Args:
    model: any decoder, sharded or not; its layout says how rows are split over devices.
    max_length: the most inputs of a row, so it may have one token more.
    batch_size: the number of rows of `max_length` tokens that run at a time; of shorter rows
      as many run as have that number of tokens together. It is raised so that devices have equal
      numbers of rows.
    chunk_size: the number of tokens of one device whose logits exist at one time.

  Attributes:
    programs: the buckets that have been run, each of which was compiled once.

  Raises:
    ValueError: the sizes are out of range.
  """

  def __init__(
    self, model: Decoder, *, max_length: int, batch_size: int = 8, chunk_size: int = 256
  ):
    config, self.layout = model.config, model.layout
    if max_length < 1 or batch_size < 1:
      raise ValueError(f"max_length={max_length} and batch_size={batch_size} must be at least 1")
    if config.positions == "learned" and max_length > config.max_positions:
      raise ValueError(
        f"max_length={max_length} is more than the {config.max_positions} learned positions of "
        "the model; set it to at most that"
      )
    self.max_length, self.batch_size, self.vocab_size = max_length, batch_size, config.vocab_size
    graphdef, self._state = nnx.split(model)

    def run(state: PyTree, batch: Mapping[str, Array], chunks: Array) -> tuple[Array, Array]:
      return _score(nnx.merge(graphdef, state), batch, chunks, chunk_size)

    self._run = jax.jit(run, out_shardings=self.layout.everywhere)
    self._chunk_size = chunk_size
    self.programs: set[int] = set()
    self._sizes = fine_sizes(max_length)

  def score(self, rows: Sequence[Scored]) -> list[Scores]:
    """Returns the scores of each row, in the order of the rows.

    Raises:
      ValueError: a row is too short or too long, or holds no token of the model.
    """
    tokens = [self._checked(index, row) for index, row in enumerate(rows)]
    found: list[Scores | None] = [None] * len(rows)
    waiting: tuple[list[int], tuple[Array, Array]] | None = None
    # The longest come first: what does not fit into memory fails at once. The results of a batch
    # are fetched while the next one runs.
    for numbers, size in batches([self.bucket(len(row) - 1) for row in tokens], self.rows_of):
      self.programs.add(size)
      batch, chunks = self._batch([(tokens[n], rows[n].first) for n in numbers], size)
      running = self._run(self._state, self.layout.split(batch), self.layout.copy(chunks))
      if waiting:
        _collect(found, rows, *waiting)
      waiting = numbers, running
    if waiting:
      _collect(found, rows, *waiting)
    return [scores for scores in found if scores is not None]

  def bucket(self, length: int) -> int:
    """Returns the row length in tokens of the bucket that fits rows of `length` inputs."""
    shards = self.layout.num_shards("tokens")
    return -(-fitting(length, self._sizes) // shards) * shards

  def rows_of(self, size: int) -> int:
    """Returns the number of rows of a bucket that run at a time."""
    shards = self.layout.num_shards("batch")
    fitting = self.batch_size * self.max_length // size
    return max(1, -(-fitting // shards)) * shards

  def _checked(self, index: int, row: Scored) -> np.ndarray:
    tokens = np.asarray(row.tokens, np.int32)
    if not 1 <= row.first < len(tokens) <= self.max_length + 1:
      raise ValueError(
        f"row {index} has {len(tokens)} tokens, of which those from {row.first} on are to be "
        f"scored; allowed: at least one, none of them token 0, in a row of at most "
        f"{self.max_length + 1} tokens (max_length + 1)"
      )
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= self.vocab_size:
      raise ValueError(
        f"row {index} holds {most if least >= 0 else least}, which is no token of the model; "
        f"allowed: 0..{self.vocab_size - 1}"
      )
    return tokens

  def _batch(
    self, rows: Iterable[tuple[np.ndarray, int]], size: int
  ) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the arrays of a batch, filled up with rows of padding, and its number of chunks."""
    shape = self.rows_of(size), size
    names = ("inputs", "segment_ids", "positions", "targets", "places")
    batch = {name: np.zeros(shape, np.int32) for name in names}
    longest = 0
    for number, (tokens, first) in enumerate(rows):
      length, count = len(tokens) - 1, len(tokens) - first
      batch["inputs"][number, :length] = tokens[:-1]
      batch["segment_ids"][number, :length] = 1
      batch["positions"][number, :length] = np.arange(length)
      batch["targets"][number, :count] = tokens[first:]
      batch["places"][number, :count] = np.arange(first - 1, length)
      longest = max(longest, count)
    width = _chunk_width(shape[0] // self.layout.num_shards("batch"), self._chunk_size)
    return batch, np.asarray(-(-longest // width), np.int32)


def _collect(
  found: list[Scores | None],
  rows: Sequence[Scored],
  numbers: Sequence[int],
  results: tuple[Array, Array],
) -> None:
  """Puts the results of a batch, fetched from the devices, to the numbers of its rows."""
  log_probs, greedy = (np.asarray(result) for result in results)
  for place, number in enumerate(numbers):
    count = len(rows[number].tokens) - rows[number].first
    found[number] = Scores(log_probs[place, :count].copy(), greedy[place, :count].copy())


def _chunk_width(rows: int, chunk_size: int) -> int:
  """Returns how many positions of each row a chunk has, given the rows of one device."""
  return max(1, chunk_size // rows)


def _score(
  model: Decoder, batch: Mapping[str, Array], chunks: Array, chunk_size: int
) -> tuple[Array, Array]:
  """Returns log p and "is the largest" of the targets, float32 and bool [B, T].

  Args:
    model: the decoder.
    batch: arrays [B, T]: `inputs`, `segment_ids` and `positions`; `targets`, from the left; and
      `places`, the index of the input that each target follows.
    chunks: how many chunks of positions, from the left, have targets; a scalar.
    chunk_size: the number of tokens of one device in a chunk.
  """
  layout = model.layout
  hidden = model(batch["inputs"], batch["segment_ids"], batch["positions"])
  count, length = batch["targets"].shape
  width = _chunk_width(count // layout.num_shards("batch"), chunk_size)
  more = -length % width
  places, targets = (jnp.pad(batch[name], ((0, 0), (0, more))) for name in ("places", "targets"))
  # Moved to the left, the states of targets fill few chunks, wherever they stand in their rows.
  hidden = jnp.take_along_axis(hidden, places[..., None], axis=1)
  hidden = layout.constrain(hidden, "batch", None, "embed")
  # The head is cast while it is split over devices, and gathered once before the loop.
  head = layout.constrain(model.head.astype(hidden.dtype), "vocab", None)

  def body(index: Array, results: tuple[Array, Array]) -> tuple[Array, Array]:
    start = index * width
    states, wanted = (
      lax.dynamic_slice_in_dim(array, start, width, axis=1) for array in (hidden, targets)
    )
    logits = model.logits(states, head)
    # The target's logit is found by a comparison, not by a gather: V may be split over devices.
    hit = jnp.arange(logits.shape[-1], dtype=wanted.dtype) == wanted[..., None]
    own = jnp.sum(jnp.where(hit, logits, 0.0), axis=-1)
    new = own - jax.nn.logsumexp(logits, axis=-1), jnp.argmax(logits, axis=-1) == wanted
    log_probs, greedy = (
      lax.dynamic_update_slice_in_dim(result, part, start, axis=1)
      for result, part in zip(results, new, strict=True)
    )
    return log_probs, greedy

  empty = jnp.zeros(targets.shape, jnp.float32), jnp.zeros(targets.shape, bool)
  log_probs, greedy = lax.fori_loop(0, chunks, body, empty)
  return log_probs[:, :length], greedy[:, :length]
