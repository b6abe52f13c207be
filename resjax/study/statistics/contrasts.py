"""Paired differences between arms that were run with the same seeds.

An arm is a setting under study, and a seed decides initial values and the order of the data, which
all arms share. The value of arm a with seed s is taken for

  y(a, s) = mean(a) + shift(s) + noise

so that a difference of two arms at one seed is free of the shift that the seed brings.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
from scipy import stats

from resjax.study.statistics.intervals import t_quantile
from resjax.study.statistics.multiplicity import holm

LEVEL = 0.95
# An arm whose paired differences spread so many times more than the median of all uses its own
# spread. Two seeds cannot tell: their spread is off by a factor of 3 in 4 of 100 arms.
OUTLYING = 3.0
LEAST_SEEDS_OF_OUTLYING = 3

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
    seeds: the seeds that both arms have, in order.
    paired: the difference at each of them.
    mean: their mean.
    interval: the 95 % interval of the true difference; None if there is one seed.
    deviation: the standard deviation of a paired difference; None likewise.
    error: the standard error of the mean, the deviation over √n; None likewise.
    freedom: its degrees of freedom.
    own: whether the deviation is that of this contrast alone, because it spreads more than others.
    p: the two-sided p value of no difference; None likewise.
    holm: the same, adjusted for all contrasts of the comparison.
    equality_p: the p value of a difference as large as the margin or larger, the larger one of two
      one-sided tests; None if there is no margin.
  """

  contrast: Contrast
  seeds: tuple[int, ...]
  paired: tuple[float, ...]
  mean: float
  interval: tuple[float, float] | None
  deviation: float | None
  error: float | None
  freedom: int
  own: bool
  p: float | None
  holm: float | None
  equality_p: float | None


def compare(
  values: Values, contrasts: Sequence[Contrast], margins: Mapping[Contrast, float] | None = None
) -> list[Difference]:
  """Returns the differences of contrasts, d̄ ± t(0.975, ν) s / √n, with a pooled deviation s.

  s² = 2 Σ (y(a, s) − ȳ(a) − ȳ(s) + ȳ)² / ν,   ν = (A − 1)(n − 1)

  over the A arms of all contrasts: the residual of the two-way layout of arms and seeds. With one
  reference for K other arms A − 1 = K. The mean variance of the K paired differences estimates the
  same, but they share the noise of the reference, which leaves it fewer degrees of freedom than ν.
  With seeds missing, the residual is that of the least squares fit, and intervals are approximate.

  A contrast whose differences deviate more than 3 times as much as the median one has its own
  deviation, ν = n − 1, and its arm is left out of the pool; this needs 3 seeds.

  Args:
    values: for each arm its value by seed.
    contrasts: the questions, each with arms of `values` that share a seed.
    margins: for each contrast the difference that is too small to matter; None: no equality is
      tested.

  Raises:
    ValueError: two arms of a contrast share no seed.
  """
  found = [_paired(values, contrast) for contrast in contrasts]
  outlying = _outlying(found)
  names = {name for c in contrasts for name in (c.arm, c.reference)}
  pooled = names - {c.arm for c, wide in zip(contrasts, outlying, strict=True) if wide}
  variance, freedom = residual_variance({name: values[name] for name in pooled})
  results = []
  for contrast, paired, wide in zip(contrasts, found, outlying, strict=True):
    n, margin = len(paired), None if margins is None else margins[contrast]
    if wide:
      own = float(np.var(list(paired.values()), ddof=1)), n - 1
      results.append(_difference(contrast, paired, *own, True, margin))
    else:
      results.append(_difference(contrast, paired, 2 * variance, freedom, False, margin))
  tested = [r.p for r in results if r.p is not None]
  adjusted = iter(holm(tested))
  return [r if r.p is None else dataclasses.replace(r, holm=next(adjusted)) for r in results]


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


def residual_variance(values: Values) -> tuple[float, int]:
  """Returns the variance of the noise of arms with seeds, and its degrees of freedom.

  Args:
    values: for each arm its value by seed.
  """
  cells = [(arm, seed, value) for arm, by in values.items() for seed, value in by.items()]
  arms, arm = np.unique([cell[0] for cell in cells], return_inverse=True)
  seeds, seed = np.unique([cell[1] for cell in cells], return_inverse=True)
  design = np.hstack([np.eye(len(arms))[arm], np.eye(len(seeds))[seed]])
  y = np.array([cell[2] for cell in cells])
  fit, _, rank, _ = np.linalg.lstsq(design, y - y.mean(), rcond=None)
  freedom = len(cells) - int(rank)
  residual = y - y.mean() - design @ fit
  return (float(residual @ residual) / freedom if freedom else 0.0), freedom


def _paired(values: Values, contrast: Contrast) -> dict[int, float]:
  first, second = values[contrast.arm], values[contrast.reference]
  seeds = sorted(first.keys() & second.keys())
  if not seeds:
    raise ValueError(f"{contrast.arm} and {contrast.reference} have no seed in common")
  return {seed: first[seed] - second[seed] for seed in seeds}


def _outlying(found: Sequence[Mapping[int, float]]) -> list[bool]:
  """Returns for the paired differences of each contrast whether they spread more than others."""
  spreads = [float(np.std(list(d.values()), ddof=1)) if len(d) > 1 else np.nan for d in found]
  known = [spread for spread in spreads if np.isfinite(spread)]
  bound = OUTLYING * float(np.median(known)) if known else np.inf
  return [
    len(d) >= LEAST_SEEDS_OF_OUTLYING and bool(spread > bound)
    for d, spread in zip(found, spreads, strict=True)
  ]


def _difference(
  contrast: Contrast,
  paired: Mapping[int, float],
  variance: float,
  freedom: int,
  own: bool,
  margin: float | None,
) -> Difference:
  differences = tuple(paired.values())
  mean, n = float(np.mean(differences)), len(differences)
  result = Difference(
    contrast, tuple(paired), differences, mean, None, None, None, freedom, own, None, None, None
  )
  if not freedom:
    return result
  error = (variance / n) ** 0.5
  half = t_quantile(freedom, LEVEL) * error
  return dataclasses.replace(
    result,
    interval=(mean - half, mean + half),
    deviation=variance**0.5,
    error=error,
    p=2 * _tail(abs(mean), error, freedom),
    equality_p=None if margin is None else _tail(margin - abs(mean), error, freedom),
  )


def _tail(distance: float, error: float, freedom: int) -> float:
  """Returns P(T > distance / error) of Student's t; arms without noise differ for sure or not."""
  if error == 0:
    return 0.5 if distance == 0 else float(distance < 0)
  return float(stats.t.sf(distance / error, freedom))
