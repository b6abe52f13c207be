"""The tuned lens: affine maps, one per depth position, from hidden states to the last one."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors
import safetensors.numpy
from flax import nnx
from jax import lax

from resjax.base import Array, Location, PyTree, locations, typed_json
from resjax.data import Batch, MeasuredText
from resjax.models import Decoder
from resjax.study.analysis.lens import chunk, num_chunks
from resjax.study.analysis.states import trajectory
from resjax.study.analysis.token_groups import next_tokens
from resjax.study.analysis.totals import RowSums

_TENSORS, _FACTS = "lens.safetensors", "lens.json"
_CHUNK = 256  # tokens of a shard whose logits exist at a time
_CLEAR = 2.0  # standard errors by which a map must be better than none on the selection rows
_FEWEST = 12  # rows of a text
_MOST_BYTES = 1 << 34

Progress = Callable[[int, int], None]
"""A function that is called as progress(done, total) after every step."""


@dataclasses.dataclass(frozen=True)
class TunedLens:
  """The prediction softmax(head · final_norm(h + A_p h + b_p)) of the state h at depth position p.

  The maps start at zero, which is the logit lens. A map that is not clearly better on rows that it
  was not trained on stays zero; so does that of the last position.

  Attributes:
    weights: A [P, D, D], applied from the right: h A_p.
    biases: b [P, D].
  """

  weights: Array
  biases: Array

  def __call__(self, states: Array) -> Array:
    """Returns the translated states of the states [P, ..., D] at all depth positions."""
    return jax.vmap(translate)(self.weights, self.biases, states)


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The tuned lens beside the logit lens, on text that neither training nor selection has seen.

  There are P depth positions, those that were trained.

  Attributes:
    num_tokens: the number of tokens.
    num_rows: the number of rows of tokens that they lie in.
    kl: KL(final prediction ‖ lens) in nats per token, of the logit and the tuned lens [2, P].
    nats: the loss of both lenses on the next token [2, P].
    kl_errors: the standard errors of `kl`, from how rows differ [2, P].
    nats_errors: the standard errors of `nats` [2, P].
    gain: the KL of the logit lens minus that of the tuned lens [P].
    gain_errors: the standard errors of `gain`, by rows [P].
  """

  num_tokens: int
  num_rows: int
  kl: np.ndarray
  nats: np.ndarray
  kl_errors: np.ndarray
  nats_errors: np.ndarray
  gain: np.ndarray
  gain_errors: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Facts:
  """What a folder says of its lens: for which model it was trained, and the digest of its maps."""

  model: str
  digest: str


def translate(weight: Array, bias: Array, hidden: Array) -> Array:
  """Returns h + h A + b [..., D] in the dtype of h."""
  moved = hidden.astype(weight.dtype)
  return (moved + moved @ weight + bias).astype(hidden.dtype)


def train(
  decoder: Decoder,
  text: MeasuredText,
  *,
  steps: int = 250,
  learning_rate: float = 1e-3,
  layers: Sequence[int] = (),
  words: int = 0,
  seed: int = 0,
  progress: Progress = lambda done, total: None,
) -> tuple[TunedLens, Comparison]:
  """Trains a lens for the states after layers, and compares it with the logit lens.

  The rows of the text are split in their order: the first 70% train, the next 15% select, and the
  last 15% compare. The loss is KL(final prediction ‖ lens), the mean over tokens, for each depth
  position on its own. Adam trains with a rate that falls linearly to zero. Of ten points of
  training the one with the best KL on the selection rows is kept for each position.

  A large vocabulary makes this loss dear. With `words` K it has K words, drawn anew in every step:
  half of them are those of the step's tokens and those that the model finds most probable after
  them; the other half stand for the R others, drawn from them uniformly, and their logits have
  log(2 R / K) added in both predictions. Equal predictions have no loss for any draw. Selection and
  comparison take the whole vocabulary.

  The paper trains with the same loss, and with SGD with momentum; it has no maps to select.

  Args:
    decoder: any decoder, sharded or not, with any combinator.
    text: the text, as many rows as there are to split.
    steps: the number of steps, of one batch of the text's size each.
    learning_rate: the rate at the first step.
    layers: the layers after which a map is trained, 0..L-1, or negative from the end; empty trains
      them all, and that for the embedding. Other maps stay zero.
    words: K, the number of words in the loss; 0: all.
    seed: the seed of the order of rows, and of the words.
    progress: is called after every step.

  Raises:
    ValueError: The text has too few rows to be split, or an argument is out of range.

  Source: Eliciting Latent Predictions from Transformers with the Tuned Lens, arXiv 2303.08112.
  """
  if steps < 1 or not 0 < learning_rate < math.inf:
    raise ValueError(
      f"steps={steps} must be at least 1, and learning_rate={learning_rate} a positive number"
    )
  depth, vocabulary = decoder.config.num_layers, decoder.config.vocab_size
  for layer in layers:
    if not -depth <= layer < depth:
      raise ValueError(f"--layers={layer} is out of range; allowed: {-depth}..{depth - 1}")
  if words and not 2 <= words <= vocabulary:
    raise ValueError(f"--words={words} is out of range; allowed: 2..{vocabulary}, or 0 for all")
  places = np.unique([1 + layer % depth for layer in layers] or np.arange(depth + 1))
  size = len(text.batches[0]["inputs"])
  training, selection, comparison = _split(text)
  meter = _Meter(decoder, places, words)
  shape = len(places), decoder.config.d_model
  zeros = np.zeros((*shape, shape[1]), np.float32), np.zeros(shape, np.float32)
  maps = jax.tree.map(decoder.layout.copy, zeros)
  optimizer = optax.adam(optax.linear_schedule(learning_rate, 0.0, steps))
  moments, rng = optimizer.init(maps), np.random.default_rng(seed)
  held_out = _batches(selection, size)
  plain = meter.rows(maps, held_out)
  best, best_kl = maps, _totals(plain)["kl"].mean()
  points = {round(point) for point in np.linspace(0, steps, 11)[1:]}
  update = jax.jit(functools.partial(_update, optimizer))
  order = np.zeros(0, int)
  for step in range(1, steps + 1):
    if len(order) < size:
      order = np.concatenate([order, rng.permutation(len(training["inputs"]))])
    rows, order = order[:size], order[size:]
    batch = {name: array[np.resize(rows, size)] for name, array in training.items()}
    key = jax.random.key_data(jax.random.fold_in(jax.random.key(seed), step))
    gradient = meter.gradient(maps, batch, decoder.layout.copy(np.asarray(key)))
    maps, moments = update(gradient, moments, maps)
    if step in points:
      kl = _totals(meter.rows(maps, held_out))["kl"].mean()
      better = kl < best_kl
      best_kl = np.where(better, kl, best_kl)
      best = _chosen(better, maps, best)
    progress(step, steps)
  gain = _totals(meter.rows(best, held_out), plain)["gain"]
  clear = gain.mean() > _CLEAR * np.nan_to_num(gain.standard_error())
  clear &= places != depth  # the last state is what the others are compared with
  best = _chosen(clear, best, jax.tree.map(jnp.zeros_like, best))
  whole = (jnp.zeros((depth + 1, *a.shape[1:]), a.dtype).at[places].set(a) for a in best)
  return TunedLens(*whole), meter.compare(best, _batches(comparison, size))


def save(lens: TunedLens, folder: Location, model: str) -> None:
  """Writes a lens into a folder of its own.

  Args:
    lens: the lens.
    folder: is made where it is missing.
    model: the fingerprint of the decoder, see `TrainedModel.fingerprint`.
  """
  arrays = {name: np.asarray(value) for name, value in dataclasses.asdict(lens).items()}
  content = safetensors.numpy.save(arrays)
  locations.make_folder(folder, "--out")
  locations.write_bytes(folder / _TENSORS, content)
  facts = _Facts(model, hashlib.sha256(content).hexdigest())
  locations.write_text(folder / _FACTS, json.dumps(dataclasses.asdict(facts)))


def load(folder: Location, model: str) -> TunedLens:
  """Returns the lens that `save` wrote.

  Raises:
    ValueError: There is none, it is damaged, or it belongs to another model.
  """
  facts = typed_json.read(folder / _FACTS, _Facts)
  content = locations.read_bytes(folder / _TENSORS, _MOST_BYTES)
  if facts.model != model:
    raise ValueError(
      f"{folder} has a tuned lens for other parameters ({facts.model[:12]}, not {model[:12]}); "
      "train one for this checkpoint with resjax inspect --what=lens"
    )
  if hashlib.sha256(content).hexdigest() != facts.digest:
    raise ValueError(f"{folder / _TENSORS} is damaged; train the lens again")
  try:
    maps = safetensors.numpy.load(content)
  except (safetensors.SafetensorError, KeyError, ValueError):  # KeyError: of an unknown dtype
    raise ValueError(f"{folder / _TENSORS} is no safetensors file; train the lens again") from None
  weights, biases = maps.get("weights", np.zeros(0)), maps.get("biases", np.zeros(0))
  if weights.ndim != 3 or weights.shape != (*biases.shape, *biases.shape[-1:]):
    raise ValueError(
      f"{folder / _TENSORS} holds no tuned lens: weights {list(weights.shape)} and biases "
      f"{list(biases.shape)} must be [P, D, D] and [P, D]; train the lens again"
    )
  return TunedLens(jnp.asarray(weights), jnp.asarray(biases))


class _Meter:
  """Measures lenses of one decoder at some places, with arrays as arguments of its programs."""

  def __init__(self, decoder: Decoder, places: np.ndarray, words: int):
    graphdef, self._parameters = nnx.split(decoder)
    self._layout = layout = decoder.layout
    merge = functools.partial(nnx.merge, graphdef)
    compiled = functools.partial(jax.jit, out_shardings=layout.everywhere)
    self._gradient = compiled(
      lambda parameters, maps, rows, key: _gradient(
        merge(parameters), maps, rows, places, words, jax.random.wrap_key_data(key)
      )
    )
    self._sums = compiled(
      lambda parameters, maps, rows: _sums(merge(parameters), maps, rows, places)
    )

  def gradient(self, maps: PyTree, batch: Batch, key: Array) -> PyTree:
    """Returns the gradient of the mean KL of each depth position by its map."""
    return self._gradient(self._parameters, maps, self._layout.split(batch), key)

  def rows(self, maps: PyTree, batches: Sequence[Batch]) -> "list[_Rows]":
    """Returns what `_sums` does of every batch, in float64."""
    found = []
    for batch in batches:
      sums = self._sums(self._parameters, maps, self._layout.split(batch))
      found.append(jax.tree.map(lambda a: np.asarray(a, np.float64), jax.device_get(sums)))
    return found

  def compare(self, maps: PyTree, batches: Sequence[Batch]) -> Comparison:
    """Returns the comparison of a lens with the logit lens."""
    # The logit lens is a run of its own. On CPUs, XLA of JAX 0.10 and 0.12 makes both lenses in
    # one program read memory that nothing has written, where the model has no final norm.
    before = self.rows(jax.tree.map(jnp.zeros_like, maps), batches)
    plain, tuned = _totals(before), _totals(self.rows(maps, batches), before)
    both: dict[str, Any] = {
      f"{name}{ending}": np.stack([statistic(one[name]) for one in (plain, tuned)])
      for name in ("kl", "nats")
      for ending, statistic in (("", RowSums.mean), ("_errors", RowSums.standard_error))
    }
    gain, counts = tuned["gain"], (int(tuned["gain"].tokens), int(tuned["gain"].rows))
    return Comparison(*counts, gain=gain.mean(), gain_errors=gain.standard_error(), **both)


_Rows = dict[str, np.ndarray]  # the sums of the rows of a batch, by metric


def _totals(found: Sequence[_Rows], plain: Sequence[_Rows] = ()) -> dict[str, RowSums]:
  """Returns the sums over rows of `kl` and `nats`; given those of the logit lens, of `gain` too."""
  total: dict[str, RowSums] = {}
  for number, rows in enumerate(found):
    values = {name: rows[name] for name in ("kl", "nats")}
    if plain:
      values["gain"] = plain[number]["kl"] - rows["kl"]
    for name, each in values.items():
      new = RowSums.of(each, rows["tokens"])
      total[name] = total[name] + new if name in total else new
  return total


class _Words(NamedTuple):
  """The words of a loss: their rows of the output embedding [K, D], and what logits get added [K].

  None in place of both: all words.
  """

  head: Array | None = None
  added: Array | float = 0.0


def _gradient(
  decoder: Decoder, maps: PyTree, rows: PyTree, places: np.ndarray, words: int, key: Array
) -> PyTree:
  """Returns the gradient of the mean KL of each depth position by its own map."""
  states, *seen = _observed(decoder, rows, places)
  drawn = _drawn(decoder, rows["inputs"], seen[0], seen[-1], words, key) if words else _Words()

  def of_chunk(one: PyTree, *parts: Array) -> PyTree:
    return jax.grad(lambda m: jnp.sum(_terms(decoder, drawn, m, *parts)["kl"]))(one)

  total = _over_chunks(decoder, drawn, of_chunk, maps, states, *seen)
  count = jnp.maximum(jnp.sum(seen[-1]), 1)
  return jax.tree.map(lambda g: g / count, total)


def _sums(decoder: Decoder, maps: PyTree, rows: PyTree, places: np.ndarray) -> dict[str, Array]:
  """Returns the sums over tokens of `kl` and `nats` [P, B], and the tokens [B]."""
  states, *seen = _observed(decoder, rows, places)

  def of_chunk(one: PyTree, *parts: Array) -> dict[str, Array]:
    terms = _terms(decoder, _Words(), one, *parts)
    return jax.tree.map(lambda values: jnp.sum(values, axis=1), terms)

  found = _over_chunks(decoder, _Words(), of_chunk, maps, states, *seen)
  return found | {"tokens": jnp.sum(seen[-1], axis=1)}


def _observed(
  decoder: Decoder, rows: PyTree, places: np.ndarray
) -> tuple[Array, Array, Array, Array]:
  """Returns states [P, B, T, D], the last ones, the next tokens and what counts [B, T]."""
  tokens, segment_ids = rows["inputs"], rows["segment_ids"]
  states = trajectory(decoder, tokens, segment_ids, rows["positions"])
  following, counted = next_tokens(tokens, segment_ids)
  return states[places], states[-1], following, counted.astype(jnp.float32)


def _drawn(
  decoder: Decoder, tokens: Array, last: Array, counted: Array, words: int, key: Array
) -> _Words:
  """Returns the words for the loss of some tokens [B, T], given their last states [B, T, D]."""
  chunks, size = num_chunks(tokens.shape, _CHUNK, decoder.layout), decoder.config.vocab_size

  def expected(total: Array, index: Array) -> tuple[Array, None]:
    logits = decoder.logits(decoder.final_norm(chunk(last, 1, chunks, index)))
    weight = chunk(counted, 1, chunks, index)[..., None]
    return total + jnp.sum(weight * jax.nn.softmax(logits), axis=(0, 1)), None

  score = lax.scan(expected, jnp.zeros(size), jnp.arange(chunks))[0]
  score = score.at[tokens].add(jnp.float32(1.0))
  likely = lax.top_k(score, words // 2)[1]
  others = words - words // 2
  order = jax.random.uniform(key, (size,)).at[likely].set(-1.0)
  numbers = jnp.concatenate([likely, lax.top_k(order, others)[1]])
  added = jnp.where(jnp.arange(words) < words // 2, 0.0, math.log((size - words // 2) / others))
  return _Words(jnp.take(decoder.head, numbers, axis=0), added)


def _log_p(decoder: Decoder, words: _Words, hidden: Array) -> Array:
  return jax.nn.log_softmax(decoder.logits(decoder.final_norm(hidden), words.head) + words.added)


def _terms(
  decoder: Decoder, words: _Words, one: PyTree, state: Array, final: Array, following: Array,
  counted: Array,
) -> dict[str, Array]:  # fmt: skip
  """Returns KL(final prediction ‖ lens) and the loss on the next token [B, t], 0 if not counted.

  The loss has a meaning for all words alone.
  """
  lens = _log_p(decoder, words, translate(one[0], one[1], state))
  kl = jnp.sum(jnp.exp(final) * (final - lens), axis=-1)
  nats = -jnp.take_along_axis(lens, following[..., None], axis=-1)[..., 0]
  return {"kl": jnp.where(counted > 0, kl, 0.0), "nats": jnp.where(counted > 0, nats, 0.0)}


def _over_chunks(
  decoder: Decoder, words: _Words, terms: Callable[..., PyTree], maps: PyTree, states: Array,
  last: Array, *arrays: Array,
) -> PyTree:  # fmt: skip
  """Returns the sums over chunks of tokens of terms(map, state, final prediction, parts) [P, ...].

  The final prediction is made once for all depth positions.
  """
  chunks = num_chunks(last.shape[:2], _CHUNK, decoder.layout)

  def of(index: Array | int) -> PyTree:
    final = _log_p(decoder, words, chunk(last, 1, chunks, index))
    parts = [chunk(a, 1, chunks, index) for a in arrays]

    def position(_: None, own: tuple[PyTree, Array]) -> tuple[None, PyTree]:
      return None, terms(*own, final, *parts)

    return lax.scan(position, None, (maps, chunk(states, 2, chunks, index)))[1]

  start = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(of, 0))
  body = lambda total, index: (jax.tree.map(jnp.add, total, of(index)), None)  # noqa: E731
  return lax.scan(body, start, jnp.arange(chunks))[0]


def _update(
  optimizer: optax.GradientTransformation, gradient: PyTree, moments: PyTree, maps: PyTree
) -> tuple[PyTree, PyTree]:
  updates, moments = optimizer.update(gradient, moments, maps)
  return optax.apply_updates(maps, updates), moments


def _chosen(which: np.ndarray, maps: PyTree, others: PyTree) -> PyTree:
  """Returns the maps of the positions for which `which` [P] is true, and `others` elsewhere."""

  def choose(a: Array, b: Array) -> Array:
    return jnp.where(which.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

  return jax.tree.map(choose, maps, others)


def _split(text: MeasuredText) -> list[Batch]:
  """Returns the rows of a text that train, those that select, and those that compare."""
  names = ("inputs", "segment_ids", "positions")
  rows = {name: np.concatenate([batch[name] for batch in text.batches]) for name in names}
  used = rows["segment_ids"].any(axis=1)
  count = int(used.sum())
  if count < _FEWEST:
    raise ValueError(
      f"{text.name} has {count} rows, and a tuned lens needs {_FEWEST} or more to train, select "
      "and compare; raise --tokens, or lower --seq_len"
    )
  ends = [round(0.7 * count), round(0.85 * count), count]
  return [
    {name: array[used][start:end] for name, array in rows.items()}
    for start, end in zip([0, *ends], ends, strict=False)
  ]


def _batches(rows: Batch, size: int) -> list[Batch]:
  """Returns rows in batches of one size, the last filled up with rows of padding."""
  count = len(rows["inputs"])
  padded = {
    name: np.concatenate([array, np.zeros((-count % size, array.shape[1]), array.dtype)])
    for name, array in rows.items()
  }
  return [
    {name: array[first : first + size] for name, array in padded.items()}
    for first in range(0, count, size)
  ]
