"""Adds up the sums of batches, and turns them into the alignment of a model."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from resjax.base import Array
from resjax.combinators import OUTPUT, Combinator
from resjax.study.analysis.alignment import (
  DECILES,
  GROUPS,
  MEASURES,
  Alignment,
  DepthPosition,
  DepthWeights,
  Group,
  Shift,
)
from resjax.study.analysis.lens import PER_TOKEN
from resjax.study.analysis.probing import ProbeConfig, ProbeSums
from resjax.study.analysis.shift import Compared, Rows, balanced_shifts, shifts

_RENAMED = {"input_first": "top1_is_input", "next_first": "top1_is_target"}
_DROPPED = ("input_nats",)


class RowSums(NamedTuple):
  """Sums over rows for the mean of a metric and its standard error, [..., G] each.

  Attributes:
    values: Σ s, where s is the sum of the metric over the tokens of a row.
    squares: Σ s².
    products: Σ s n, where n is the number of tokens of the row.
    tokens: Σ n [G].
    token_squares: Σ n² [G].
    rows: the number of rows that have tokens [G].
  """

  values: np.ndarray
  squares: np.ndarray
  products: np.ndarray
  tokens: np.ndarray
  token_squares: np.ndarray
  rows: np.ndarray

  @classmethod
  def of(cls, values: np.ndarray, tokens: np.ndarray) -> "RowSums":
    """Returns the sums of a batch, from sums of rows [..., G, B] and numbers of tokens [G, B]."""
    terms = values, values**2, values * tokens, tokens, tokens**2, tokens > 0
    return cls(*(term.sum(axis=-1, dtype=np.float64) for term in terms))

  def __add__(self, other: "RowSums") -> "RowSums":  # type: ignore[override]
    """Returns the sums of both."""
    return RowSums(*map(np.add, self, other))

  def mean(self) -> np.ndarray:
    """Returns the mean over tokens m = Σ s / Σ n [..., G]; NaN without tokens."""
    return _mean(self.values, self.tokens)

  def standard_error(self) -> np.ndarray:
    """Returns the standard error of the mean [..., G]; NaN with less than two rows.

    It is √(R / (R − 1) Σ (s − m n)²) / Σ n over R rows: that of a ratio of sums over rows, because
    tokens of a row depend on each other.

    Source: Cochran, Sampling Techniques, 1977, equation 6.9, without the correction for a finite
      population.
    """
    mean = self.mean()
    spread = self.squares - 2 * mean * self.products + mean**2 * self.token_squares
    return _mean(np.sqrt(np.maximum(_mean(spread * self.rows, self.rows - 1), 0)), self.tokens)


class Totals:
  """Adds up the `ProbeSums` of batches in float64, and keeps sums by row for the bootstrap."""

  def __init__(self):
    self._tokens: list[np.ndarray] = []  # One array [G, B] per batch.
    self._rows: dict[str, list[np.ndarray]] = {}  # One [P, K, G, B] per batch, by reading.
    self._sums: dict[str, RowSums] = {}
    self._weights: dict[str, np.ndarray] = {}

  def add(self, sums: ProbeSums) -> None:
    """Adds the sums of a batch, which are NumPy arrays."""
    tokens, kl_tokens = _wide(sums.tokens), _wide(sums.kl_tokens)
    self._tokens.append(tokens)
    for reading, found in sums.readings.items():
      self._rows.setdefault(reading, []).append(_wide(found))
      self._add(reading, _wide(found), tokens)
      self._add(f"{reading} kl", _wide(sums.kl[reading]), kl_tokens)
    self._add("branch", _wide(sums.branch), tokens)
    for site, weights in sums.depth_weights.items():
      self._weights[site] = self._weights.get(site, 0.0) + _wide(weights)

  def _add(self, name: str, values: np.ndarray, tokens: np.ndarray) -> None:
    new = RowSums.of(values, tokens)
    self._sums[name] = self._sums[name] + new if name in self._sums else new

  def alignment(
    self,
    model: str,
    corpus: str,
    config: ProbeConfig,
    combinator: Combinator,
    *,
    num_bootstrap: int,
    level: float,
    seed: int,
  ) -> Alignment:
    """Returns the alignment of a model; takes the options of `shifts`."""
    options = {"num_bootstrap": num_bootstrap, "level": level, "seed": seed}
    tokens = np.concatenate(self._tokens, axis=-1)
    used = tokens[0] > 0  # Rows that fill up the last batch have no tokens.
    return Alignment(
      model=model,
      corpus=corpus,
      num_rows=int(used.sum()),
      positions=config.positions(combinator),
      readings={
        reading: self._groups(
          reading, np.concatenate(rows, axis=-1)[..., used], tokens[:, used], options
        )
        for reading, rows in self._rows.items()
      },
      depth_weights=self._depth_weights(combinator, tokens[0].sum()),
    )

  def _groups(
    self, reading: str, sums: np.ndarray, tokens: np.ndarray, options: Mapping[str, Any]
  ) -> Mapping[str, Group]:
    """Returns the groups, given sums [P, K, G, rows] and numbers of tokens [G, rows]."""

    def rows(token: str, index: int) -> Rows:
      return _rows_of(token, sums[:, :, index], tokens[index])

    def compared(index: int, chance_index: int) -> Compared:
      return Compared(
        rows("next", index), rows("input", index), rows("shuffled", chance_index), chance
      )

    chance, first = rows("shuffled", 0), GROUPS.index(DECILES[0])
    asked = {name: compared(index, 0) for index, name in enumerate(GROUPS[:first])}
    if len(tokens) > first:  # The shuffled targets of each decile come behind the deciles.
      asked |= {
        name: compared(index, index + len(DECILES)) for index, name in enumerate(DECILES, first)
      }
    found = {
      name: self._group(reading, index, shifts(one, **options), _own)
      for index, (name, one) in enumerate(asked.items())
    }
    if len(tokens) > first:
      parts = [asked[name] for name in DECILES]
      balanced = balanced_shifts(asked["all"], parts, **options)
      found["balanced"] = Group(found["all"].num_tokens, 0, {}, balanced)
    # The shuffled targets of every other row are compared with those of the rows between.
    every_other = np.arange(tokens.shape[1]) % 2 == 0
    shuffled = Compared(chance.of(every_other), rows("input", 0), chance.of(~every_other), chance)
    return found | {"shuffled": self._group(reading, 0, shifts(shuffled, **options), _shuffled)}

  def _group(
    self, reading: str, index: int, found: Mapping[str, Shift], named: Callable[..., Any]
  ) -> Group:
    """Returns the group with this index; `named` gives its metrics the names of the group."""
    num_tokens, num_kl_tokens = (
      int(self._sums[name].tokens[index]) for name in (reading, f"{reading} kl")
    )
    metrics, errors = (
      named(self._statistics(reading, index, statistic))
      for statistic in (RowSums.mean, RowSums.standard_error)
    )
    return Group(num_tokens, num_kl_tokens, metrics, found, errors)

  def _statistics(
    self, reading: str, index: int, statistic: Callable[[RowSums], np.ndarray]
  ) -> dict[str, np.ndarray]:
    """Returns a statistic [P] of one group by the names of `PER_TOKEN`, and two more."""
    own, kl, branch = (
      statistic(self._sums[name])[..., index] for name in (reading, f"{reading} kl", "branch")
    )
    more = {"kl_to_final": kl, "branch_norm": np.concatenate([[np.nan], branch])}
    return dict(zip(PER_TOKEN, own.T, strict=True)) | more

  def _depth_weights(self, combinator: Combinator, count: float) -> DepthWeights | None:
    readers, rows, sums = [], [], self._weights
    for layer in range(combinator.num_layers):
      for site in combinator.sites:
        if site in sums:
          readers.append(DepthPosition(layer, site))
          rows.append(sums[site][layer])
    if OUTPUT in sums:
      readers.append(DepthPosition(combinator.num_layers, OUTPUT))
      rows.append(sums[OUTPUT])
    if not rows:
      return None
    means = _mean(np.stack(rows), np.asarray(count))
    return DepthWeights(tuple(readers), combinator.source_names(), means)


def _rows_of(token: str, sums: np.ndarray, tokens: np.ndarray) -> Rows:
  """Returns the rows of a token of `lens.CANDIDATES`, given sums [P, K, rows] of a group."""
  named = {
    measure: (PER_TOKEN.index(form.format(token)), sign)
    for measure, (form, sign) in MEASURES.items()
    if form.format(token) in PER_TOKEN
  }
  return Rows({measure: sign * sums[:, at] for measure, (at, sign) in named.items()}, tokens)


def _wide(values: Array) -> np.ndarray:
  return np.asarray(values, np.float64)


def _mean(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Returns sums [..., G] / counts [G]; NaN where a count is not positive."""
  return sums / np.where(counts > 0, counts, np.nan)


def _own(metrics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the metrics of a group of tokens, by their names in `alignment.METRICS`."""
  kept = {name: v for name, v in metrics.items() if not name.startswith("shuffled_")}
  return {_RENAMED.get(name, name): v for name, v in kept.items() if name not in _DROPPED}


def _shuffled(metrics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the metrics with the shuffled target in the place of the next token.

  Those that need the embedding of the next token are left out.
  """
  kept = {name: v for name, v in metrics.items() if name.startswith(("shuffled_", "input_"))}
  return _own({name.replace("shuffled_", "next_"): v for name, v in kept.items()})
