"""What sweeps of cuts and gates say of the claims C3 and C4 beside an arm's own difference."""

from collections.abc import Mapping

import numpy as np
from scipy import stats

from docs.findings import statements, words
from docs.findings.statements import Values
from resjax.study.statistics import Contrast, against_best, compare
from resjax.study.sweeps import table

CHOOSING = (1, 2)  # the seeds that choose the best cut
PLANNED = 5  # seeds above it came later, for what the planned ones left undecided


def numbers(name: str) -> dict[str, str]:
  """Returns the figures of a sweep of docs/findings whose arms are called cut... and gate...

  Those of `statements.of_sweep` are differences from the baseline, `best.ARM` is that of a gate
  from the best cut, where there are seeds enough, `cuts` tests that all cuts are alike, and
  `later.ARM` is the difference from the baseline at the seeds that came later.
  """
  folder = statements.FOLDER / name
  if not folder.exists():
    return {}
  values = statements.by_arm(table.read(folder).runs)
  cuts = {arm: by for arm, by in values.items() if arm.startswith("cut")}
  found = statements.of_sweep(folder) | {"cuts": heterogeneity(cuts)} | later(values)
  gates = [arm for arm in values if arm.startswith("gate")]
  if len(next(iter(values.values()))) < len(CHOOSING) + 2:
    return found  # too few seeds to choose a cut by some and to test it by others
  best = against_best(values, gates, list(cuts), CHOOSING)
  return found | {
    "best": f"`{best[0].contrast.reference}`",
    **{f"best.{one.contrast.arm}": words.difference(one) for one in best},
    "best.p": words.p_value(max(one.holm or 0 for one in best)),
  }


def later(values: Values) -> dict[str, str]:
  """Returns the differences from the first arm at the seeds that came later."""
  new = {arm: {seed: v for seed, v in by.items() if seed > PLANNED} for arm, by in values.items()}
  arms = [arm for arm, by in new.items() if by]
  found = compare(new, [Contrast(arm, arms[0]) for arm in arms[1:]])
  return {f"later.{one.contrast.arm}": words.difference(one) for one in found}


def heterogeneity(values: Mapping[str, Mapping[int, float]]) -> str:
  """Returns the F test of no difference between arms, whatever noise they have.

  The residual of the two-way layout of K arms and n seeds has (K − 1)(n − 1) degrees of freedom
  only if all differences of arms are equally noisy; F(1, n − 1) holds without that.

  Source:
    Geisser and Greenhouse 1958, An extension of Box's results on the use of the F distribution.
  """
  y = np.array([[by[seed] for seed in sorted(by)] for by in values.values()])
  arms, seeds = y.shape
  residual = y - y.mean(axis=1, keepdims=True) - y.mean(axis=0) + y.mean()
  noise = (residual**2).sum() / ((arms - 1) * (seeds - 1))
  f = seeds * y.mean(axis=1).var(ddof=1) / noise
  return f"F = {f:,.0f}, {words.p_value(float(stats.f.sf(f, 1, seeds - 1)))}, n = {seeds}"
