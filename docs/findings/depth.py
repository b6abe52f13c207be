"""What the sweeps of configs/ablations/depthbench_1m.py and lns_rate.py say, by the plans there.

  python -m docs.findings.depth RUNS

keeps plan.json and results.json of the sweeps in the folder RUNS, each in a folder of docs/findings
with its name, and prints their tables and verdicts, which are marks of pages: `depth.losses`,
`depth.rates`, `depth.order`, `depth.lns`, `depth.deep`. Then `python -m docs.systems.public` draws
the sweeps beside DepthBench.
"""

import itertools
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from configs.ablations import depthbench_1m
from docs.findings import statements, swept_models, words
from docs.findings.cuts_and_gates import Values, by_arm
from resjax.study.analysis import plots
from resjax.study.statistics import Contrast, compare, holm, mean_interval
from resjax.study.sweeps import plan, results, table

FOLDER = pathlib.Path(__file__).parent
SWEEP, RATES = "depthbench_1m_", "lns_rate_"
SHALLOW, DEEP, LNS_LAYERS = 6, 48, 24  # of the planned statements
CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"
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
  """Returns the tables, and the verdict on each planned statement whose sweeps are there."""
  ours = losses(folder)
  found = {}
  if ours:
    found["losses"] = _table([*ours], _by_depth(ours, _shown))
    plans = {layers: plan.read(folder / f"{SWEEP}{layers}") for layers in ours}
    rates = {layers: made.tuned for layers, made in plans.items() if made is not None}
    found["rates"] = _table([*rates], _by_depth(rates, lambda by: f"{next(iter(by.values())):g}"))
  if DEEP in ours:
    deepest = statements.of_sweep(folder / f"{SWEEP}{DEEP}")
    found["deep"] = verdict(deepest["hyper_connections-mhc.verdict"])
  if {SHALLOW, DEEP} <= {*ours}:
    found |= order(ours[SHALLOW], ours[DEEP])
  for sweep in folder.glob(f"{RATES}{LNS_LAYERS}*/"):
    gains = statements.of_sweep(sweep)
    own, common = (verdict(gains[f"{name}.verdict"]) for name in ("lns-x5-lns", "standard-x5"))
    found["lns"] = UNDECIDED if own == common == CONFIRMED else own
  return found


def losses(folder: pathlib.Path = FOLDER) -> dict[int, Values]:
  """Returns bits per byte by layers, arm and seed of all arms of which no run diverged."""
  found = {}
  for sweep in folder.glob(f"{SWEEP}*/"):
    runs = table.read(sweep).runs
    diverged = {run.arm for run in runs if run.status == results.DIVERGED}
    done = [run for run in runs if run.status == results.DONE and run.arm not in diverged]
    found[int(sweep.name.removeprefix(SWEEP))] = by_arm(done)
  return dict(sorted(found.items()))


def verdict(found: str) -> str:
  """Returns what the verdict of a sweep says of the statement that the arm is better."""
  return _VERDICTS.get(found.partition(",")[0], UNDECIDED)


def order(shallow: Values, deep: Values) -> dict[str, str]:
  """Returns whether the order of designs changes with depth, and the pairs for which it does.

  Two arms are reversed if the first is ahead in one shape and the second in the other: p is the
  larger one of the two paired tests, 1 where the means have one sign, after Holm over all pairs.
  That no order changes is found if each pair of means that is reversed differs by less than the
  margin in one of the shapes for sure: p is twice the smaller one of the two tests of equality.
  """
  pairs = [Contrast(*pair) for pair in itertools.combinations([a for a in shallow if a in deep], 2)]
  shapes = [compare(values, pairs, _margins(values, pairs)) for values in (shallow, deep)]
  both = list(zip(*shapes, strict=True))
  turned = [a.mean * b.mean < 0 for a, b in both]
  equality = [[1.0 if x.equality_p is None else x.equality_p for x in found] for found in both]
  small = [2 * min(found) < 0.05 for found in equality]
  p = [max(a.p or 0, b.p or 0) if turn else 1.0 for (a, b), turn in zip(both, turned, strict=True)]
  known = all(one.p is not None for found in both for one in found)
  sure = [pair for pair, adjusted in zip(pairs, holm(p), strict=True) if known and adjusted < 0.05]
  none = all(equal or not turn for equal, turn in zip(small, turned, strict=True))
  found = CONFIRMED if sure else REFUTED if none else UNDECIDED
  shown = ", ".join(f"`{pair.arm}` and `{pair.reference}`" for pair in sure)
  return {
    "order": found,
    "order.pairs": shown or "none",
    "order.counts": f"{sum(turned)} of {len(pairs)} pairs of means, {len(sure)} for sure",
  }


def _margins(values: Values, pairs: Sequence[Contrast]) -> dict[Contrast, float]:
  share = depthbench_1m.PLAN["margin"]
  return {pair: share * statistics.fmean(values[pair.reference].values()) for pair in pairs}


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


def _by_depth(found: Mapping[int, Mapping], show) -> dict[str, list[str]]:
  arms = dict.fromkeys(arm for by in found.values() for arm in by)
  return {arm: [show(by[arm]) if arm in by else "" for by in found.values()] for arm in arms}


def _shown(values: Mapping[int, float]) -> str:
  return words.mean([*values.values()]).partition(",")[0] if len(values) > 1 else ""


def _table(layers: list[int], rows: Mapping[str, list[str]]) -> str:
  lines = [f"| design | {' | '.join(f'{x} layers' for x in layers)} |"]
  lines.append("|---" * (len(layers) + 1) + "|")
  for arm, cells in rows.items():
    lines.append(f"| `{arm}` | {' | '.join(cells)} |")
  return "\n".join(("", *lines, ""))


if __name__ == "__main__":
  main(*sys.argv[1:])
