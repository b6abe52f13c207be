"""Adds up the sums of batches, and turns them into the alignment of a model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from resjax.analysis.alignment import GROUPS, Alignment, DepthPosition, DepthWeights, Group, Switch
from resjax.analysis.lens import PER_TOKEN
from resjax.analysis.probing import ProbeConfig, ProbeSums
from resjax.analysis.switch_layer import switch_layer
from resjax.combinators.base import OUTPUT, Combinator
from resjax.typing import Array

_RENAMED = {"input_first": "top1_is_input", "next_first": "top1_is_target"}
_DROPPED = ("input_nats",)
_LOG_RANKS = tuple(PER_TOKEN.index(f"{name}_log_rank") for name in ("next", "input", "shuffled"))


class Totals:
  """Adds up the `ProbeSums` of batches in float64, and keeps log-ranks by row for the bootstrap."""

  def __init__(self):
    self._tokens: list[np.ndarray] = []  # One array [G, B] per batch.
    self._log_ranks: dict[str, list[np.ndarray]] = {}  # One [P, 3, G, B] per batch, by reading.
    self._sums: dict[str, np.ndarray] = {}

  def add(self, sums: ProbeSums) -> None:
    """Adds the sums of a batch, which are NumPy arrays."""
    self._tokens.append(_wide(sums.tokens))
    for reading, found in sums.readings.items():
      rows = _wide(found)[:, _LOG_RANKS]
      self._log_ranks.setdefault(reading, []).append(rows)
      self._add(reading, _wide(found).sum(axis=-1))
      self._add(f"{reading} kl", _wide(sums.kl[reading]).sum(axis=-1))
    self._add("branch", _wide(sums.branch).sum(axis=-1))
    self._add("kl_tokens", _wide(sums.kl_tokens).sum(axis=-1))
    for site, weights in sums.depth_weights.items():
      self._add(f"{site} weights", _wide(weights))

  def _add(self, name: str, values: np.ndarray) -> None:
    self._sums[name] = self._sums[name] + values if name in self._sums else values

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
    """Returns the alignment of a model; the options are those of `switch_layer`."""
    options = {"num_bootstrap": num_bootstrap, "level": level, "seed": seed}
    tokens = np.concatenate(self._tokens, axis=-1)
    used = tokens[0] > 0  # Rows that fill up the last batch have no tokens.
    log_ranks = {
      reading: np.concatenate(rows, axis=-1)[..., used] for reading, rows in self._log_ranks.items()
    }
    return Alignment(
      model=model,
      corpus=corpus,
      num_rows=int(used.sum()),
      positions=config.positions(combinator),
      readings={
        reading: self._groups(reading, rows, tokens[:, used], options)
        for reading, rows in log_ranks.items()
      },
      depth_weights=self._depth_weights(combinator, tokens[0].sum()),
    )

  def _groups(
    self, reading: str, log_ranks: np.ndarray, tokens: np.ndarray, options: Mapping[str, Any]
  ) -> Mapping[str, Group]:
    """Returns the groups, given log-ranks [P, 3, G, rows] and numbers of tokens [G, rows]."""
    found = {}
    names = [name for name in GROUPS if name != "shuffled"][: len(tokens)]
    for index, name in enumerate(names):
      metrics = _own(self._means(reading, index, tokens[index].sum()))
      switch = switch_layer(log_ranks[:, :, index], tokens[index], **options)
      found[name] = self._group(index, tokens, metrics, switch)
    metrics = _shuffled(self._means(reading, 0, tokens[0].sum()))
    shuffled_first = log_ranks[:, [2, 1, 0], 0]
    switch = switch_layer(shuffled_first, tokens[0], **options)
    return found | {"shuffled": self._group(0, tokens, metrics, switch)}

  def _group(
    self,
    index: int,
    tokens: np.ndarray,
    metrics: Mapping[str, np.ndarray],
    switch: Switch | None,
  ) -> Group:
    num_kl_tokens = int(self._sums["kl_tokens"][index])
    return Group(int(tokens[index].sum()), num_kl_tokens, metrics, switch)

  def _means(self, reading: str, index: int, count: float) -> dict[str, np.ndarray]:
    """Returns the means [P] over one group by the names of `PER_TOKEN`, and two more."""
    means = dict(zip(PER_TOKEN, _mean(self._sums[reading][..., index].T, count), strict=True))
    kl = _mean(self._sums[f"{reading} kl"][:, index], self._sums["kl_tokens"][index])
    branch = _mean(self._sums["branch"][:, index], count)
    return means | {"kl_to_final": kl, "branch_norm": np.concatenate([[np.nan], branch])}

  def _depth_weights(self, combinator: Combinator, count: float) -> DepthWeights | None:
    readers, rows = [], []
    sums = {
      name.removesuffix(" weights"): rows
      for name, rows in self._sums.items()
      if name.endswith(" weights")
    }
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
    return DepthWeights(tuple(readers), combinator.source_names(), _mean(np.stack(rows), count))


def _wide(values: Array) -> np.ndarray:
  return np.asarray(values, np.float64)


def _mean(sums: np.ndarray, count: float) -> np.ndarray:
  return sums / count if count else np.full(sums.shape, np.nan)


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
