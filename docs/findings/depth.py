"""What the sweeps of configs/ablations/depthbench_1m.py and lns_rate.py say, by the plans there.

  python -m docs.findings.depth RUNS

keeps plan.json and results.json of the sweeps in the folder RUNS, each in a folder of docs/findings
with its name, and prints their tables and verdicts, which are marks of pages: `depth.losses`,
`depth.rates`, and `depth.missing`, which arms are not finished; `depth.order`, `depth.lns` and
`depth.deep` once their sweeps are. Then `python -m docs.systems.public` draws the sweeps beside
DepthBench.
"""

import pathlib
import statistics
import sys
from collections.abc import Mapping

from matplotlib.axes import Axes

from configs.ablations import depthbench, depthbench_1m, lns_rate
from docs.findings import statements, swept_models
from docs.findings.statements import CONFIRMED, REFUTED, UNDECIDED, Values
from resjax.study.analysis import plots
from resjax.study.statistics import mean_interval

FOLDER = pathlib.Path(__file__).parent
SWEEP, RATES = "depthbench_1m_", "lns_rate_"
SHALLOW, DEEP, LNS_LAYERS = 6, 48, 24  # of the planned statements
_VERDICTS = {"better": CONFIRMED, "worse": REFUTED, "equal": REFUTED}


def main(runs: str) -> None:
  """Keeps the sweeps of a folder, and prints what a page may say of them."""
  for sweep in sorted(pathlib.Path(runs).glob("*/results.json")):
    if sweep.parent.name.startswith((SWEEP, RATES)):
      kept = FOLDER / sweep.parent.name
      swept_models.keep_sweep(sweep.parent, kept)
  for name, text in numbers().items():
    print(f"{name}: {text}")


def numbers(folder: pathlib.Path = FOLDER) -> dict[str, str]:
  """Returns the tables, and the verdict on each planned statement whose sweeps are finished."""
  ours = losses(folder)
  found = {}
  if ours:
    found["losses"] = statements.losses_table({f"{x} layers": of for x, of in ours.items()})
    sweeps = {f"{layers} layers": folder / f"{SWEEP}{layers}" for layers in ours}
    found["rates"] = statements.rates_table(sweeps)
  arms = [arm for arm, _ in depthbench.designs()]
  lacking = {x: statements.unfinished(folder / f"{SWEEP}{x}", arms) for x in depthbench_1m.SHAPES}
  if ours:
    shown = [f"{_shown(of, arms)} at {layers} layers" for layers, of in lacking.items() if of]
    found["missing"] = "; ".join(shown) or "none"
  if not lacking[DEEP]:
    deepest = statements.of_sweep(folder / f"{SWEEP}{DEEP}")
    found["deep"] = verdict(deepest["hyper_connections-mhc.verdict"])
  if not lacking[SHALLOW] + lacking[DEEP]:
    found |= statements.order(ours[SHALLOW], ours[DEEP], depthbench_1m.PLAN["margin"])
  asked = {arm for pair in lns_rate.PLAN["contrasts"] for arm in pair}
  for sweep in folder.glob(f"{RATES}{LNS_LAYERS}*/"):
    if statements.unfinished(sweep, asked):
      continue
    gains = statements.of_sweep(sweep)
    own, common = (verdict(gains[f"{name}.verdict"]) for name in ("lns-x5-lns", "standard-x5"))
    found["lns"] = UNDECIDED if own == common == CONFIRMED else own
  return found


def _shown(lacking: list[str], arms: list[str]) -> str:
  return "all" if lacking == arms else ", ".join(f"`{arm}`" for arm in lacking)


def losses(folder: pathlib.Path = FOLDER) -> dict[int, Values]:
  """Returns bits per byte by layers, arm and seed of all arms of which no run diverged."""
  sweeps = folder.glob(f"{SWEEP}*/")
  found = {int(one.name.removeprefix(SWEEP)): statements.ranked(one) for one in sweeps}
  return dict(sorted(found.items()))


def verdict(found: str) -> str:
  """Returns what the verdict of a sweep says of the statement that the arm is better."""
  return _VERDICTS.get(found.partition(",")[0], UNDECIDED)


def panel(axes: Axes, ours: Mapping[int, Values], styles: Mapping[str, Mapping[str, str]]) -> None:
  """Draws the loss of every design against the number of layers, with 95 % intervals over seeds.

  Args:
    axes: the place of the panel.
    ours: see `losses`.
    styles: how lines of designs look; others are grey.
  """
  arms = list(dict.fromkeys(arm for values in ours.values() for arm in values))
  for place, arm in enumerate(arms):
    by = {layers: [*values[arm].values()] for layers, values in ours.items() if arm in values}
    means = [statistics.fmean(found) for found in by.values()]
    spans = [
      mean_interval(found) or (mean, mean) for found, mean in zip(by.values(), means, strict=True)
    ]
    bars = [(mean - low, high - mean) for mean, (low, high) in zip(means, spans, strict=True)]
    apart = [(0.97 + 0.006 * place) * layers for layers in by]  # intervals beside each other
    style = {"color": "0.5", "marker": ".", **styles.get(arm, {}), "label": plots.plain(arm)}
    axes.errorbar(apart, means, yerr=[*zip(*bars, strict=True)], capsize=2, **style)
  axes.set_xscale("log")
  axes.set_xticks([*ours], map(str, ours))
  axes.set_ylabel("validation loss (bits per byte)")


if __name__ == "__main__":
  main(*sys.argv[1:])
