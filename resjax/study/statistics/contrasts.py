"""Paired differences between arms that were run with the same seeds.

An arm is a setting under study, and a seed decides initial values and the order of the data, which
all arms share. The value of arm a with seed s is taken for

  y(a, s) = mean(a) + shift(s) + noise(a, s)

so that a difference of two arms at one seed is free of the shift that the seed brings. The noise of
arms may differ in size and go together: every contrast has the deviation of its own differences.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from resjax.study.statistics.intervals import student
from resjax.study.statistics.multiplicity import holm

Values = Mapping[str, Mapping[int, float]]


@dataclasses.dataclass(frozen=True)
class Contrast:
  """A question: what is the mean of `arm` less that of `reference`?"""

  arm: str
  reference: str


@dataclasses.dataclass(frozen=True)
class Difference:
  """What was found about a contrast.

  Attributes:
    contrast: the contrast.
    seeds: the n seeds that both arms have, in order.
    paired: the difference at each of them.
    mean: their mean.
    interval: the 95 % interval of the true difference; None if there is one seed.
    deviation: the standard deviation of the paired differences; None likewise.
    error: the standard error of the mean, the deviation over √n; None likewise.
    freedom: its degrees of freedom, n − 1.
    p: the two-sided p value of no difference; None likewise.
    holm: the same, adjusted for all contrasts of the comparison.
    equality_p: the p value of a difference as large as the margin or larger, the larger one of two
      one-sided tests; None if there is no margin.
    equality_holm: the same, adjusted for all contrasts of the comparison.
  """

  contrast: Contrast
  seeds: tuple[int, ...]
  paired: tuple[float, ...]
  mean: float
  interval: tuple[float, float] | None = None
  deviation: float | None = None
  error: float | None = None
  freedom: int = 0
  p: float | None = None
  holm: float | None = None
  equality_p: float | None = None
  equality_holm: float | None = None


def compare(
  values: Values, contrasts: Sequence[Contrast], margins: Mapping[Contrast, float] | None = None
) -> list[Difference]:
  """Returns the differences of contrasts, each by its own paired t test.

  d̄ ± t(0.975, n − 1) s / √n, with the mean d̄ and the deviation s of the contrast's n differences

  Nothing is pooled over contrasts: a pooled deviation has more degrees of freedom, but it holds
  only where all arms are equally noisy and independent, which few seeds cannot tell, as the
  simulation of docs/comparisons.md shows. Holm's adjustment holds however contrasts depend on each
  other.

  Args:
    values: for each arm its value by seed.
    contrasts: the questions, each with arms of `values` that share a seed.
    margins: for each contrast the difference that is too small to matter; None: no equality is
      tested.

  Raises:
    ValueError: two arms of a contrast share no seed.
  """
  found = [
    _difference(contrast, _paired(values, contrast), None if margins is None else margins[contrast])
    for contrast in contrasts
  ]
  adjusted, equal = (
    _adjusted([one.p for one in found]),
    _adjusted([one.equality_p for one in found]),
  )
  return [
    dataclasses.replace(one, holm=differs, equality_holm=equals)
    for one, differs, equals in zip(found, adjusted, equal, strict=True)
  ]


def against_best(
  values: Values,
  arms: Sequence[str],
  candidates: Sequence[str],
  choosing: Collection[int],
  better: Literal["lower", "higher"] = "lower",
) -> list[Difference]:
  """Returns the differences of arms from the best of several candidates.

  Some seeds choose the candidate with the best mean, and the others compare: the best of several at
  the seeds that chose it owes a part of its mean to chance.

  Args:
    values: for each arm and candidate its value by seed.
    arms: the arms that are compared.
    candidates: the arms of which the best one is the reference.
    choosing: the seeds that choose; no other arm is compared at them.
    better: which values are better.

  Raises:
    ValueError: a candidate has none of the choosing seeds, or an arm no other one in common.
  """
  means = {}
  for name in candidates:
    own = [value for seed, value in values[name].items() if seed in choosing]
    if not own:
      raise ValueError(f"{name} has none of the seeds {', '.join(map(str, sorted(choosing)))}")
    means[name] = float(np.mean(own))
  best = (min if better == "lower" else max)(means, key=means.__getitem__)
  fresh = {
    name: {seed: value for seed, value in values[name].items() if seed not in choosing}
    for name in (best, *arms)
  }
  return compare(fresh, [Contrast(arm, best) for arm in arms])


def _paired(values: Values, contrast: Contrast) -> dict[int, float]:
  first, second = values[contrast.arm], values[contrast.reference]
  seeds = sorted(first.keys() & second.keys())
  if not seeds:
    raise ValueError(f"{contrast.arm} and {contrast.reference} have no seed in common")
  return {seed: first[seed] - second[seed] for seed in seeds}


def _adjusted(p_values: Sequence[float | None]) -> list[float | None]:
  """Returns the p values that there are, adjusted by Holm, each in its place."""
  adjusted = iter(holm([p for p in p_values if p is not None]).tolist())
  return [None if p is None else next(adjusted) for p in p_values]


def _difference(
  contrast: Contrast, paired: Mapping[int, float], margin: float | None
) -> Difference:
  differences = tuple(paired.values())
  result = Difference(contrast, tuple(paired), differences, float(np.mean(differences)))
  if len(differences) < 2:
    return result
  found = student(differences)
  low, high = found.interval()
  return dataclasses.replace(
    result,
    interval=(float(low), float(high)),
    deviation=float(found.deviation),
    error=float(found.error),
    freedom=found.freedom,
    p=float(found.p()),
    equality_p=None if margin is None else float(found.equality_p(margin)),
  )
