"""Scaling ladders: what systems reached on rungs of growing size, as table, JSON and plot."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from resjax.base import Location, locations, terminal
from resjax.study.analysis import plots
from resjax.study.statistics import compute_multiplier
from resjax.study.statistics.compute_multiplier import Ladder, Multiplier, ScalingLaw

_WIDEST = 4.0  # the largest factor of a multiplier that the plot shows


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The arms of a ladder, held against the scaling law of the reference.

  Attributes:
    rungs: the names of the rungs, from the smallest one.
    reference: the name of the reference.
    ladders: what each arm reached, by name; the reference is one of them.
    law: the scaling law of the reference.
    multipliers: the effective-compute multiplier of every other arm on each rung.
  """

  rungs: Sequence[str]
  reference: str
  ladders: Mapping[str, Ladder]
  law: ScalingLaw
  multipliers: Mapping[str, Sequence[Multiplier]]

  def verdict(self, arm: str) -> tuple[bool, str]:
    """Returns whether an arm may be said to save compute, and the claim or the objection."""
    compute = self.ladders[self.reference].compute(self.law.currency)
    return compute_multiplier.verdict(self.multipliers[arm], compute)


def compare(
  rungs: Sequence[str],
  ladders: Mapping[str, Ladder],
  reference: str,
  currency: str,
  floor: float | None = None,
) -> Comparison:
  """Returns the comparison of arms with a reference; see `compute_multiplier`.

  Raises:
    ValueError: no law can be fitted to the reference.
  """
  law = compute_multiplier.fit(ladders[reference], currency, floor)
  found = {
    arm: compute_multiplier.multipliers(law, ladders[reference], ladder)
    for arm, ladder in ladders.items()
    if arm != reference
  }
  return Comparison(rungs, reference, ladders, law, found)


def show(comparison: Comparison, console: Console) -> None:
  """Prints a row for each arm on each rung, the law, and what may be claimed of each arm."""
  law, currency = comparison.law, comparison.law.currency
  numbers = currency, "loss", "law", "tok/s", "S", "95 % interval"
  table = terminal.Table("rung", "arm", numbers=numbers)
  for index, rung in enumerate(comparison.rungs):
    for arm, ladder in comparison.ladders.items():
      compute, speeds = ladder.compute(currency)[index], ladder.tokens_per_second
      multiplier = comparison.multipliers[arm][index] if arm in comparison.multipliers else None
      table.add_row(
        rung,
        arm,
        f"{compute:.2e}",
        f"{ladder.losses[index]:.4f}",
        f"{law.loss(compute):.4f}" if multiplier is None else "",
        "" if speeds is None else f"{speeds[index]:.0f}",
        *(("", "") if multiplier is None else _words(multiplier)),
      )
    table.add_section()
  console.print(table)
  lines = [
    f"{comparison.reference}: L(C) = {law.floor:.4g} + {law.scale:.4g} C^-{law.exponent:.4g}, C in "
    f"{currency}",
    f"lack of fit: {law.spread:.2%} of the loss; degrees of freedom: {law.freedom}",
    "intervals have the arm's own lack of fit beside it, and t by Satterthwaite",
    f"S: how many times the compute, at its speed, {comparison.reference} needs for the arm's loss",
  ]
  for arm in comparison.multipliers:
    holds, words = comparison.verdict(arm)
    lines.append(f"{arm} {words}" if holds else f"{arm}: no saving is claimed, since {words}")
  console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _words(one: Multiplier) -> tuple[str, str]:
  return f"{one.value:.3f}", f"{_short(one.low)} to {_short(one.high)}"


def _short(value: float) -> str:
  return f"{value:.2f}" if 0.005 <= value < 1000 else f"{value:.0e}"


def save(comparison: Comparison, path: Location) -> None:
  """Writes all numbers of a comparison as JSON, with null for infinite ones."""
  law = dataclasses.asdict(comparison.law)
  law["sensitivity"] = comparison.law.sensitivity.tolist()
  arms = {}
  for arm, ladder in comparison.ladders.items():
    found = comparison.multipliers.get(arm)
    own: dict[str, Any] = {
      name: list(v) for name, v in dataclasses.asdict(ladder).items() if v is not None
    }
    own["compute"] = ladder.compute(comparison.law.currency).tolist()
    if found is not None:
      holds, words = comparison.verdict(arm)
      own["multipliers"] = [
        {key: value if math.isfinite(value) else None for key, value in vars(one).items()}
        for one in found
      ]
      own |= {"saves": holds, "verdict": words}
    arms[arm] = own
  content: dict[str, Any] = {
    "rungs": list(comparison.rungs), "reference": comparison.reference, "law": law, "arms": arms
  }  # fmt: skip
  locations.write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def figure(comparison: Comparison, title: str) -> Figure:
  """Draws losses with the law, and multipliers with their intervals."""
  made = Figure(figsize=(10, 4.2), layout="constrained")
  left, right = made.subplots(1, 2)
  _draw_losses(left, comparison)
  _draw_multipliers(right, comparison)
  plots.set_title(made, title)
  return made


def _draw_losses(axes: Axes, comparison: Comparison) -> None:
  law = comparison.law
  for index, (arm, ladder) in enumerate(comparison.ladders.items()):
    axes.plot(
      ladder.compute(law.currency), list(ladder.losses), linestyle="", **_style(index),
      label=plots.plain(arm),
    )  # fmt: skip
  compute = comparison.ladders[comparison.reference].compute(law.currency)
  line = np.geomspace(compute.min() / 1.5, compute.max() * 1.5, 100)
  label = f"{law.floor:.3g} + {law.scale:.3g} C^-{law.exponent:.3g}"
  axes.plot(line, law.loss(line), color=plots.COLOURS[0], zorder=0, label=label)
  axes.set(xscale="log", xlabel=f"compute C ({law.currency})", ylabel="loss (nats per token)")
  axes.grid(alpha=0.3)
  axes.legend(frameon=False)


def _draw_multipliers(axes: Axes, comparison: Comparison) -> None:
  axes.axhline(1, color=plots.COLOURS[6], linestyle="--", linewidth=1)
  shown = [1.0]
  for index, arm in enumerate(comparison.ladders):
    if arm == comparison.reference:
      continue
    found = comparison.multipliers[arm]
    compute = comparison.ladders[arm].compute(comparison.law.currency) * 1.03**index
    value = np.array([one.value for one in found])
    kept = np.isfinite(value)
    below, above = (np.array([getattr(one, side) for one in found]) for side in ("low", "high"))
    axes.errorbar(
      compute[kept], value[kept], np.abs(np.stack([below, above])[:, kept] - value[kept]),
      linestyle="-", linewidth=1, capsize=3, label=plots.plain(arm), **_style(index),
    )  # fmt: skip
    ends = np.concatenate([value, below, above])
    shown.extend(ends[np.isfinite(ends)])
  low, top = max(min(shown), 1 / _WIDEST), min(max(shown), _WIDEST)
  axes.set(xscale="log", yscale="log", ylim=(low / 1.05, top * 1.05))
  axes.set_xlabel(f"compute C ({comparison.law.currency})")
  axes.set_ylabel(f"S over {plots.plain(comparison.reference)}, 95 % intervals")
  axes.yaxis.set_major_formatter("{x:.2g}")
  axes.yaxis.set_minor_formatter("{x:.2g}")
  axes.grid(alpha=0.3, which="both")
  axes.legend(frameon=False)


def _style(index: int) -> dict[str, Any]:
  colours, markers = plots.COLOURS, plots.MARKERS
  return {"color": colours[index % len(colours)], "marker": markers[index % len(markers)]}
