"""Synthetic tasks: each draws documents of symbols, and answers them exactly.

A document is a function of (seed, index). Its answers are a function of its symbols, so that rows
hold symbols alone and the answers are found when a batch is read.
"""

import abc
import dataclasses
import functools
import itertools
from typing import Any, ClassVar
from urllib.parse import parse_qsl

import numpy as np

from resjax.base import NOT_ASKED

PREFIX = "synthetic:"
VERSION = 1  # Grows when the same task would draw other documents.
_MOST_LEVELS = 16
_MOST = 1 << 24
_MOST_SYMBOLS = 4096


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
  """A task; its symbols are 0..num_symbols-1.

  Attributes:
    length: the symbols of a document; a row has one more, the end of text before it.
    count: how many documents there are.
    seed: of all documents.
    level_name: what a level of difficulty counts.
  """

  level_name: ClassVar[str]
  length: int = 64
  count: int = 100_000
  seed: int = 0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      least = 0 if field.name == "seed" else 1
      _require(least <= value <= _MOST, f"{field.name}={value}", f"{least}..{_MOST:,}")
    self._check()
    most = f"{_MOST_SYMBOLS} symbols; make its sizes smaller"
    _require(self.num_symbols <= _MOST_SYMBOLS, f"{self.num_symbols} symbols", f"at most {most}")

  @abc.abstractmethod
  def _check(self) -> None:
    """Raises ValueError if the sizes do not fit each other."""

  @property
  @abc.abstractmethod
  def num_symbols(self) -> int:
    """The number of symbols that documents and answers have."""

  @property
  @abc.abstractmethod
  def chance(self) -> float:
    """The accuracy of a guess; every answer follows from its document, so that 1 is possible."""

  @property
  @abc.abstractmethod
  def num_levels(self) -> int:
    """The number of levels."""

  @abc.abstractmethod
  def _draw(self, rng: np.random.Generator) -> np.ndarray:
    """Returns a document [length]."""

  @abc.abstractmethod
  def answers(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the correct answer after each symbol, and its level of difficulty.

    Args:
      documents: [B, length] symbols.

    Returns:
      Answers and levels from 0 on, int32 [B, length] each, `NOT_ASKED` where nothing is asked.
    """

  def document(self, index: int) -> np.ndarray:
    """Returns document 0..count-1, int32 [length]."""
    return self._draw(np.random.default_rng([self.seed, index])).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(Task):
  """N pairs of key and value, then each key once more among filler: what was its value?

  Keys of a document differ, values need not. Symbols are keys, then values, then filler. The level
  is the number of the pair. A control: systems of residuals should hardly differ.

  Source: Arora et al., Zoology, arXiv 2312.04927 (MQAR).
  """

  level_name = "pair"
  pairs: int = 8
  keys: int = 64
  values: int = 64
  filler: int = 127

  def _check(self) -> None:
    _require(self.pairs <= self.keys, f"pairs={self.pairs}", f"at most keys={self.keys}")
    need = 3 * self.pairs
    _require(self.length >= need, f"length={self.length}", f"at least 3 pairs = {need}")

  @property
  def num_symbols(self) -> int:
    """Keys, values and filler."""
    return self.keys + self.values + self.filler

  @property
  def chance(self) -> float:
    """The accuracy of guessing one of the values at random."""
    return 1 / self.values

  @property
  def num_levels(self) -> int:
    return self.pairs

  def _draw(self, rng: np.random.Generator) -> np.ndarray:
    start = 2 * self.pairs
    keys = rng.permutation(self.keys)[: self.pairs]
    document = self.keys + self.values + rng.integers(self.filler, size=self.length)
    document[:start:2] = keys
    document[1:start:2] = self.keys + rng.integers(self.values, size=self.pairs)
    document[start + rng.permutation(self.length - start)[: self.pairs]] = keys
    return document

  def answers(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    start = 2 * self.pairs
    same = documents[:, :, None] == documents[:, None, :start:2]
    asked = same.any(axis=2) & (np.arange(self.length) >= start)
    pair = np.argmax(same, axis=2)
    value = np.take_along_axis(documents[:, 1:start:2], pair, axis=1)
    return _where(asked, value), _where(asked, pair)


@dataclasses.dataclass(frozen=True)
class StateTracking(Task):
  """g_1 g_2 ... of a group; asked is, after each of them, the product p_t = p_{t-1} g_t.

  Symbols are the permutations of n elements in lexicographic order, (p g)(i) = p(g(i)). The level
  is the position, in at most 16 parts of equal length. n = 2 is parity. The depth that a
  Transformer needs grows with the length (arXiv 2210.10749, 2404.08819).
  """

  level_name = "position"
  length: int = 16
  elements: int = 3

  def _check(self) -> None:
    _require(2 <= self.elements <= 6, f"elements={self.elements}", "2..6")

  @property
  def num_symbols(self) -> int:
    """The size of the group."""
    return len(_permutations(self.elements))

  @property
  def chance(self) -> float:
    """One of the group."""
    return 1 / self.num_symbols

  @property
  def num_levels(self) -> int:
    return min(self.length, _MOST_LEVELS)

  def _draw(self, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(self.num_symbols, size=self.length)

  def answers(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    products = np.empty_like(documents)
    state = np.zeros(len(documents), documents.dtype)  # the identity is the first permutation
    for t in range(self.length):
      state = _products(self.elements)[state, documents[:, t]]
      products[:, t] = state
    return products.astype(np.int32), _parts(products.shape)


@dataclasses.dataclass(frozen=True)
class Copying(Task):
  """Half of the document is symbols, half is blanks; at blank i symbol i is asked.

  The last symbol is the blank. The level is the position, in at most 16 parts of equal length.
  """

  level_name = "position"
  length: int = 32
  symbols: int = 32

  def _check(self) -> None:
    _require(self.length % 2 == 0, f"length={self.length}", "even")

  @property
  def num_symbols(self) -> int:
    """The symbols and the blank."""
    return self.symbols + 1

  @property
  def chance(self) -> float:
    """The accuracy of guessing one of the symbols at random."""
    return 1 / self.symbols

  @property
  def num_levels(self) -> int:
    return min(self.length // 2, _MOST_LEVELS)

  def _draw(self, rng: np.random.Generator) -> np.ndarray:
    document = np.full(self.length, self.symbols)
    document[: self.length // 2] = rng.integers(self.symbols, size=self.length // 2)
    return document

  def answers(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = self.length // 2
    nothing = np.full((len(documents), half), NOT_ASKED, np.int32)
    answers = np.concatenate([nothing, documents[:, :half]], axis=1).astype(np.int32)
    return answers, np.concatenate([nothing, _parts((len(documents), half))], axis=1)


@dataclasses.dataclass(frozen=True)
class Hops(Task):
  """N pairs a, π(a) of one N-cycle π, then queries h, a: what is π^h(a)?

  Symbols are the elements, then the numbers of hops 1..`hops`; as many queries as the length has
  room for. The level is h − 1. Because π is one cycle, no answer but for h = N is a itself, and
  that guess is worth nothing.
  """

  level_name = "hop"
  length: int = 48
  elements: int = 8
  hops: int = 2

  def _check(self) -> None:
    _require(self.elements >= 2, f"elements={self.elements}", "at least 2")
    _require(self.hops < self.elements, f"hops={self.hops}", f"below elements={self.elements}")
    need = 2 * self.elements + 2
    fits = self.length >= need and self.length % 2 == 0
    _require(fits, f"length={self.length}", f"even and at least 2 elements + 2 = {need}")

  @property
  def num_symbols(self) -> int:
    """Elements and numbers of hops."""
    return self.elements + self.hops

  @property
  def chance(self) -> float:
    """Any element but the one that is asked about."""
    return 1 / (self.elements - 1)

  @property
  def num_levels(self) -> int:
    return self.hops

  def _draw(self, rng: np.random.Generator) -> np.ndarray:
    size = 2 * self.elements
    cycle = rng.permutation(self.elements)
    pairs = np.stack([cycle, np.roll(cycle, -1)], axis=1)
    queries = (self.length - size) // 2
    document = np.empty(self.length, np.int64)
    document[:size] = rng.permutation(pairs).reshape(-1)
    document[size::2] = self.elements + rng.integers(self.hops, size=queries)
    document[size + 1 :: 2] = rng.integers(self.elements, size=queries)
    return document

  def answers(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = 2 * self.elements
    image = np.empty((len(documents), self.elements), documents.dtype)
    np.put_along_axis(image, documents[:, :size:2], documents[:, 1:size:2], axis=1)
    hops, current = documents[:, size::2] - self.elements, documents[:, size + 1 :: 2]
    for hop in range(self.hops):
      further = np.take_along_axis(image, current, axis=1)
      current = np.where(hops >= hop, further, current)
    answers, levels = (np.full(documents.shape, NOT_ASKED, np.int32) for _ in range(2))
    answers[:, size + 1 :: 2], levels[:, size + 1 :: 2] = current, hops
    return answers, levels


_TASKS: dict[str, tuple[type[Task], dict[str, int]]] = {
  "mqar": (AssociativeRecall, {}),
  "s3": (StateTracking, {"elements": 3}),
  "s5": (StateTracking, {"elements": 5}),
  "parity": (StateTracking, {"elements": 2}),
  "copy": (Copying, {}),
  "hops": (Hops, {}),
}


def parse(source: str) -> Task:
  """Returns the task of a source such as synthetic:mqar?pairs=8&length=64.

  Raises:
    ValueError: there is no such task, or one of its settings is unknown or out of range.
  """
  name, _, query = source.removeprefix(PREFIX).partition("?")
  if name not in _TASKS:
    raise ValueError(f"{source!r} is no synthetic task; allowed: {', '.join(_TASKS)}")
  kind, fixed = _TASKS[name]
  known = [field.name for field in dataclasses.fields(kind) if field.name not in fixed]
  values: dict[str, Any] = dict(fixed)
  for key, value in parse_qsl(query, keep_blank_values=True):
    if key not in known:
      raise ValueError(f"{source!r}: {key!r} is no setting of {name}; allowed: {', '.join(known)}")
    if not (value.isascii() and value.isdigit() and len(value) < 12):
      raise ValueError(f"{source!r}: {key}={value} must be a whole number")
    values[key] = int(value)
  try:
    return kind(**values)
  except ValueError as error:
    raise ValueError(f"{source!r}: {error}") from None


def _require(ok: bool, given: str, allowed: str) -> None:
  if not ok:
    raise ValueError(f"{given} is out of range; allowed: {allowed}")


def _where(asked: np.ndarray, values: np.ndarray) -> np.ndarray:
  return np.where(asked, values, NOT_ASKED).astype(np.int32)


def _parts(shape: tuple[int, ...]) -> np.ndarray:
  """Returns the part of each position in its row, of at most 16 parts of equal length."""
  length = shape[1]
  part = np.arange(length) * min(length, _MOST_LEVELS) // length
  return np.broadcast_to(part, shape).astype(np.int32)


@functools.cache
def _permutations(elements: int) -> list[tuple[int, ...]]:
  return list(itertools.permutations(range(elements)))


@functools.cache
def _products(elements: int) -> np.ndarray:
  """Returns the number of the product p g [p, g] for the numbers of p and g."""
  all_of = _permutations(elements)
  number = {permutation: i for i, permutation in enumerate(all_of)}
  return np.array([[number[tuple(p[i] for i in g)] for g in all_of] for p in all_of])
