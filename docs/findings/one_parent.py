"""What the sweep configs/ablations/one_parent.py says of claims C3, C4 and C6.

  python docs/findings/one_parent.py SWEEP [ANALYSIS]

SWEEP holds the results.json of `resjax sweep`, and ANALYSIS a folder for each arm with that of
`resjax analyze`, whose models are the seeds of the arm in their order.
"""

import json
import pathlib
import sys
from collections.abc import Mapping

import numpy as np
from scipy import stats

from resjax.study.analysis.report import results
from resjax.study.statistics import Contrast, Difference, against_best, compare, residual_variance

CHOOSING = (1, 2)  # the seeds that choose the best cut
Values = dict[str, dict[int, float]]


def main(sweep: str, analysis: str = "") -> None:
  """Prints the figures of docs/findings.md."""
  runs = json.loads(pathlib.Path(sweep, "results.json").read_text())["runs"]
  values: Values = {}
  for run in runs:
    values.setdefault(run["arm"], {})[run["seed"]] = run["value"]
  cuts = [arm for arm in values if arm.startswith("cut")]
  gates = [arm for arm in values if arm.startswith("gate")]
  print(f"C3 do cuts differ by layer: {heterogeneity({arm: values[arm] for arm in cuts})}")
  for found in against_best(values, gates, cuts, CHOOSING):
    print(f"C4 {in_words(found)}")
  if analysis:
    gaps = {arm: last_gaps(pathlib.Path(analysis, arm), values[arm]) for arm in values}
    others = [Contrast(arm, "unchanged") for arm in values if arm != "unchanged"]
    for found in compare(gaps, others):
      print(f"C6 cos(next) - cos(input) at the last state: {in_words(found)}")


def heterogeneity(values: Mapping[str, Mapping[int, float]]) -> str:
  """Returns the F test of no difference between arms, against the noise of seeds."""
  seeds = len(next(iter(values.values())))
  noise, freedom = residual_variance(values)
  means = [float(np.mean(list(by.values()))) for by in values.values()]
  f = seeds * float(np.var(means, ddof=1)) / noise
  p = float(stats.f.sf(f, len(values) - 1, freedom))
  return f"F({len(values) - 1}, {freedom}) = {f:.1f}, p = {p:.2g}"


def last_gaps(folder: pathlib.Path, seeds: Mapping[int, float]) -> dict[int, float]:
  """Returns cos(next) - cos(input) at the last state, by seed."""
  found = results.from_json((folder / "results.json").read_text(), str(folder))
  metrics = [one.alignment.readings["closed"]["all"].metrics for one in found]
  gaps = [float(m["cosine_next"][-1] - m["cosine_input"][-1]) for m in metrics]
  return dict(zip(sorted(seeds), gaps, strict=True))


def in_words(found: Difference) -> str:
  """Returns a difference with its interval and p value."""
  interval = "" if found.interval is None else " ({:+.4f} to {:+.4f})".format(*found.interval)
  p = "" if found.holm is None else f", p Holm {found.holm:.2g}"
  return f"{found.contrast.arm} - {found.contrast.reference}: {found.mean:+.4f}{interval}{p}"


if __name__ == "__main__":
  main(*sys.argv[1:])
