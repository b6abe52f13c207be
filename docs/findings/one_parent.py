"""What the sweep configs/ablations/one_parent.py says of claims C3, C4 and C6.

  python -m docs.findings.one_parent SWEEP [ANALYSIS]

SWEEP holds plan.json and results.json of `resjax sweep`, and ANALYSIS a folder for each arm with
that of `resjax analyze`, whose models are the seeds of the arm in their order; it gives C6.
"""

import pathlib
import sys
from collections.abc import Mapping

import numpy as np
from scipy import stats

from docs.findings import statements, words
from resjax.study.analysis.report import results
from resjax.study.statistics import Contrast, against_best, compare
from resjax.study.sweeps import Result, table

FOLDER = pathlib.Path(__file__).with_suffix("")
CHOOSING = (1, 2)  # the seeds that choose the best cut
Values = dict[str, dict[int, float]]


def main(sweep: str, analysis: str = "") -> None:
  """Prints the figures of a sweep, and C6 from a folder of analyses with one for each arm."""
  for name, text in numbers(pathlib.Path(sweep)).items():
    print(f"{name}: {text}")
  if not analysis:
    return
  values = by_arm(table.read(pathlib.Path(sweep)).runs)
  gaps = {arm: last_gaps(pathlib.Path(analysis, arm), values[arm]) for arm in values}
  others = [Contrast(arm, "unchanged") for arm in values if arm != "unchanged"]
  for found in compare(gaps, others):
    shown = f"{found.contrast.arm} - {found.contrast.reference}: {words.difference(found)}"
    print(f"C6 cos(next) - cos(input) at the last state: {shown}")


def numbers(folder: pathlib.Path = FOLDER) -> dict[str, str]:
  """Returns the figures of C3 and C4 that docs/findings.md has.

  Those of the sweep are an arm's difference from `unchanged`; `best.ARM` is that from the best cut.
  """
  stored = table.read(folder)
  assert stored.comparison is not None
  (token,) = (r for r in stored.comparison.planned if r.contrast.arm == "gate-token")
  assert token.margin is not None and token.difference is not None
  values = by_arm(stored.runs)
  cuts = {arm: by for arm, by in values.items() if arm.startswith("cut")}
  gates = [arm for arm in values if arm.startswith("gate")]
  best = against_best(values, gates, list(cuts), CHOOSING)
  return statements.of_sweep(folder) | {
    "token_share": f"1/{round(token.margin / abs(token.difference.mean))}",
    "cuts": heterogeneity(cuts),
    "best": f"`{best[0].contrast.reference}`",
    **{f"best.{one.contrast.arm}": words.difference(one) for one in best},
    "best.p": words.p_value(max(one.holm or 0 for one in best)),
  }


def by_arm(runs: list[Result]) -> Values:
  """Returns the metric of each arm by seed."""
  values: Values = {}
  for run in runs:
    assert run.seed is not None and run.value is not None
    values.setdefault(run.arm, {})[run.seed] = run.value
  return values


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


def last_gaps(folder: pathlib.Path, seeds: Mapping[int, float]) -> dict[int, float]:
  """Returns cos(next) - cos(input) at the last state, by seed."""
  found = results.from_json((folder / "results.json").read_text(), str(folder))
  metrics = [one.alignment.readings["closed"]["all"].metrics for one in found]
  gaps = [float(m["cosine_next"][-1] - m["cosine_input"][-1]) for m in metrics]
  return dict(zip(sorted(seeds), gaps, strict=True))


if __name__ == "__main__":
  main(*sys.argv[1:])
