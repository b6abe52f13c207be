"""Figures of readings of single models: tuned lens, parts of a logit, patching, depth probes."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from resjax.study.analysis import depth_positions
from resjax.study.analysis.alignment import DepthPosition
from resjax.study.analysis.attribution import Attribution
from resjax.study.analysis.depth_probes import DepthProbes, Measured
from resjax.study.analysis.patching import Patching
from resjax.study.analysis.report import panels
from resjax.study.analysis.report.heat_table import fitted
from resjax.study.analysis.report.panels import Line
from resjax.study.analysis.tuned_lens import Comparison
from resjax.study.statistics import t_quantile

_LETTERS = 12  # of a token in a label
_MOST_LABELS = 40
_LINEAR_BELOW = 0.01  # nats; above it the scale is logarithmic


def lens(found: Comparison, positions: Sequence[DepthPosition], subtitle: str) -> Figure:
  """Draws the KL of both lenses over the layers, with 95% intervals."""
  note = f"n = {found.num_tokens:,} held-out tokens; bands are 95% intervals"
  made, axes = panels.panel("Tuned lens and logit lens", subtitle, note=note)
  x = np.array([position.layer + 1.0 for position in positions])
  lines = []
  for style, (label, mean, error) in enumerate(
    zip(("tuned lens", "logit lens"), found.kl[::-1], found.kl_errors[::-1], strict=True)
  ):
    half = t_quantile(found.num_rows - 1) * error
    ends = np.maximum(mean - half, 0), mean + half
    lines.append(Line(label, x, mean, style, ends=ends))
  panels.layer_axis(axes, positions[-1].layer + 1)
  panels.draw_lines(axes, lines, "KL to the end (nats per token)", _kl_axis)
  return made


def attribution(found: Attribution, subtitle: str) -> Figure:
  """Draws the part of every site as a bar, and the parts of heads as a map."""
  note = f"logit {found.logit:.3f}; bias of the final norm {found.bias:+.3f}"
  height = max(4.0, 1.6 + 0.17 * len(found.positions))
  made, axes = panels.panel("Parts of a logit", subtitle, size=(7.6, height), note=note)
  names = depth_positions.names(found.positions)
  if found.heads is None:
    _bars(axes, found.writes, names)
    return made
  made.delaxes(axes)
  left, right = made.subplots(1, 2, width_ratios=[3, 2])
  _bars(left, found.writes, names)
  most = np.abs(found.heads).max() or 1.0
  image = right.imshow(found.heads, cmap="PuOr", vmin=-most, vmax=most, aspect="auto")
  right.set_xlabel("attention head")
  right.set_ylabel("layer")
  for set_ticks, count in zip((right.set_yticks, right.set_xticks), found.heads.shape, strict=True):
    set_ticks(range(0, count, -(-count // _MOST_LABELS)))
  made.colorbar(image, ax=right, label="part of the logit")
  return made


def patching(found: Patching, words: Sequence[str], subtitle: str) -> Figure:
  """Draws the share that comes back as a map of depth positions and tokens."""
  note = f"logit difference {found.clean:.3f} clean, {found.corrupted:.3f} corrupted"
  names, width = depth_positions.names(found.positions), max(5.0, 3.2 + 0.38 * len(words))
  size = width, 2.4 + 0.22 * len(names)
  made, axes = panels.panel("Share that a clean state brings back", subtitle, size=size, note=note)
  shares = np.concatenate([found.patched, found.patched_all[:, None]], axis=1)
  shares = found.recovered(shares)
  most = max(1.0, np.nanmax(np.abs(shares), initial=0.0))
  image = axes.imshow(shares, cmap="PuOr", vmin=-most, vmax=most, aspect="auto", origin="lower")
  axes.axvline(len(words) - 0.5, color="#000000", linewidth=1)
  labels = [f"{fitted(word, _LETTERS)} {place}" for place, word in enumerate(words)]
  axes.set_xticks(range(len(words) + 1), [*labels, "all"], rotation=90, fontsize=panels.LABEL)
  step = -(-len(names) // _MOST_LABELS)
  axes.set_yticks(range(0, len(names), step), names[::step], fontsize=panels.LABEL)
  axes.set_ylabel("after")
  axes.set_xlabel("token of the clean prompt whose state is put in")
  made.colorbar(image, ax=axes, label="0: corrupted, 1: clean")
  return made


def depth(found: DepthProbes) -> Figure:
  """Draws the depth probes that were measured, a panel each, with 95% intervals."""
  count = f"n = {found.num_tokens:,} tokens; bands are 95% intervals over rows"
  subtitle = f"{found.model}  |  {found.residual}  |  {found.corpus}"
  drawn: list[tuple[str, Callable[[Axes], object]]] = []
  if found.angular is not None:
    angular = found.angular.mean
    drawn.append(("angle between states / π", lambda axes: _map(axes, angular, "state", "state")))
  if found.causal is not None:
    causal = found.causal.mean
    words = "changed layer", "layer left out"
    drawn.append(("change of later updates", lambda axes: _map(axes, causal, *words)))
  if found.permutation is not None and len(found.pairs) >= found.num_layers:
    swaps = np.full([found.num_layers] * 2, np.nan)
    swaps[tuple(np.array(found.pairs).T)] = found.permutation.mean
    drawn.append(("|ΔL| / L of swapped layers", lambda axes: _map(axes, swaps, "layer", "layer")))
  lines = {
    "|ΔL| / L, swapped with the next": found.swap_with_next,
    "ΔL without a layer (nats)": found.skipped,
    "ΔL without n layers (nats)": found.pruned,
    "effective rank up to a layer": found.effective_rank,
    "‖J − I‖ / √W": found.jacobian,
  }
  for name, one in lines.items():
    if one is not None:
      first = 1 if one is found.pruned else 0
      drawn.append((name, functools.partial(_probe_line, one=one, first=first)))
  rows = -(-len(drawn) // 2)
  made, axes = panels.panel("Depth probes", subtitle, size=(9.0, 0.9 + 3.1 * rows), note=count)
  made.delaxes(axes)
  for axes, (name, draw) in zip(made.subplots(rows, 2, squeeze=False).flat, drawn, strict=False):
    draw(axes)
    axes.set_title(name, fontsize=panels.LABEL + 1)
  for axes in made.axes[len(drawn) :]:
    if not axes.has_data():
      axes.remove()
  return made


def _map(axes: Axes, values: np.ndarray, across: str, down: str) -> None:
  most = (
    np.nanpercentile(values, 99) if np.isfinite(values).any() else 1
  )  # one cell hides no others
  image = axes.imshow(values, cmap="viridis_r", vmin=0, vmax=most or 1)
  axes.set_xlabel(across)
  axes.set_ylabel(down)
  axes.figure.colorbar(image, ax=axes, shrink=0.9, extend="max")


def _probe_line(axes: Axes, one: Measured, first: int) -> None:
  """Draws a value for every layer, or from 1 on for every number of layers that are removed."""
  x, half = np.arange(len(one.mean)) + first, np.nan_to_num(one.half)
  look = panels.STYLES[0]
  ends = one.mean - half, one.mean + half
  axes.fill_between(x, *ends, color=look["color"], alpha=0.2, linewidth=0)
  axes.plot(x, one.mean, **look, markersize=3.5, linewidth=1.4)
  axes.set_xlabel("layers removed" if first else "layer")
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
  axes.grid(axis="y", alpha=0.25)


def _kl_axis(axes: Axes) -> None:
  axes.set_yscale("symlog", linthresh=_LINEAR_BELOW)
  axes.yaxis.set_major_formatter("{x:g}")
  axes.set_ylim(bottom=0)


def _bars(axes: Axes, parts: np.ndarray, names: Sequence[str]) -> None:
  colours = np.where(parts >= 0, panels.STYLES[0]["color"], panels.STYLES[1]["color"])
  axes.barh(range(len(parts)), parts, color=list(colours))
  step = -(-len(names) // _MOST_LABELS)
  axes.set_yticks(range(0, len(names), step), names[::step], fontsize=panels.LABEL)
  axes.invert_yaxis()
  axes.axvline(0, color="#888888", linewidth=0.8)
  axes.grid(axis="x", alpha=0.25)
  axes.set_xlabel("part of the logit")
