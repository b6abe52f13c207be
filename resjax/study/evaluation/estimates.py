"""Figures of scored texts with standard errors, and paired differences between models."""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 1000
COLUMNS = ("nats", "tokens", "bytes", "words", "right", "units")
_DRAWN = 1 << 22  # numbers drawn at a time


@dataclasses.dataclass(frozen=True)
class Metric:
  """A function of a ratio of two sums over units, `COLUMNS` each."""

  top: str
  bottom: str
  of_ratio: Callable[[np.ndarray], np.ndarray]

  def __call__(self, sums: np.ndarray) -> np.ndarray:
    """Returns the metric of sums [..., columns]."""
    top, bottom = (sums[..., COLUMNS.index(name)] for name in (self.top, self.bottom))
    with np.errstate(over="ignore"):  # a perplexity may be infinite
      return self.of_ratio(top / bottom)


def _identity(ratio: np.ndarray) -> np.ndarray:
  return ratio


def _bits(ratio: np.ndarray) -> np.ndarray:
  return ratio / math.log(2)


BITS_PER_BYTE = "bits_per_byte"
TEXT_METRICS = {
  BITS_PER_BYTE: Metric("nats", "bytes", _bits),
  "byte_perplexity": Metric("nats", "bytes", np.exp),
  "word_perplexity": Metric("nats", "words", np.exp),
  "token_perplexity": Metric("nats", "tokens", np.exp),
  "nats_per_token": Metric("nats", "tokens", _identity),
}
STREAM_METRICS = {name: TEXT_METRICS[name] for name in TEXT_METRICS if name != "word_perplexity"}
WORD_METRICS = {
  "acc": Metric("right", "units", _identity),
  "perplexity": Metric("nats", "words", np.exp),
}


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A figure.

  Attributes:
    value: the figure.
    stderr: its standard error, the standard deviation over resamples; None: there is one unit.
  """

  value: float
  stderr: float | None


@dataclasses.dataclass(frozen=True)
class Difference:
  """How far a model is from a reference.

  Attributes:
    value: the figure of the model minus that of the reference.
    stderr: its standard error, with the same resamples of both; None: there is one unit.
    interval: the 2.5 and 97.5 % quantiles of the resampled differences.
  """

  value: float
  stderr: float | None
  interval: tuple[float, float] | None


def resampled(table: np.ndarray, name: str) -> np.ndarray | None:
  """Returns the sums over `RESAMPLES` bootstraps of units [RESAMPLES, columns].

  The draw follows from the name of a text and the number of its units alone, so that all models
  that are scored on it share it, and two texts do not. The result is None for a single unit.

  Args:
    table: a row of `COLUMNS` for each unit, float64.
    name: the name of the text.
  """
  count = len(table)
  if count < 2:
    return None
  draw = np.random.default_rng(zlib.crc32(name.encode()))
  sums = np.empty((RESAMPLES, table.shape[1]))
  block = max(1, _DRAWN // count)
  for start in range(0, RESAMPLES, block):
    size = min(block, RESAMPLES - start)
    drawn = draw.integers(0, count, (size, count)) + count * np.arange(size)[:, None]
    times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
    sums[start : start + size] = times @ table
  return sums


def estimate(values: tuple[float, np.ndarray | None]) -> Estimate:
  """Returns a figure with its standard error, given the figure and its values on resamples."""
  value, drawn = values
  return Estimate(float(value), None if drawn is None else _deviation(drawn))


def difference(
  one: tuple[float, np.ndarray | None], reference: tuple[float, np.ndarray | None]
) -> Difference:
  """Returns how far a figure is from that of a reference, which has the same resamples."""
  value = float(one[0] - reference[0])
  if one[1] is None or reference[1] is None:
    return Difference(value, None, None)
  drawn = one[1] - reference[1]
  low, high = np.quantile(drawn, [0.025, 0.975])
  return Difference(value, _deviation(drawn), (float(low), float(high)))


def macro(
  parts: Sequence[tuple[float, np.ndarray | None]],
) -> tuple[float, np.ndarray | None]:
  """Returns the mean of a figure over texts, each of which counts once whatever its size."""
  drawn = [one for _, one in parts if one is not None]
  mean = float(np.mean([value for value, _ in parts]))
  if len(drawn) < len(parts):
    return mean, None
  return mean, functools.reduce(np.add, drawn) / len(drawn)


def _deviation(drawn: np.ndarray) -> float:
  with np.errstate(invalid="ignore"):
    return float(np.std(drawn, ddof=1))
