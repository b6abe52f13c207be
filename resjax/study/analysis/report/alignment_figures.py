"""Figures of an alignment: metrics over depth, groups of tokens, and the weights of sources."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from resjax.study.analysis import depth_positions
from resjax.study.analysis.alignment import DECILES, Alignment, Group
from resjax.study.analysis.report import panels
from resjax.study.analysis.report.panels import Line
from resjax.study.statistics import t_quantile

_LABELS = {
  "all": "all tokens",
  "distinct": "next ≠ input",
  **{name: f"decile {number} of next" for number, name in enumerate(DECILES)},
  DECILES[0]: "most frequent next",
  DECILES[-1]: "rarest next",
  "balanced": "deciles, equal weight",
  "shuffled": "shuffled next",
}
_RANK_GROUPS = ("all", "distinct", DECILES[0], DECILES[-1], "shuffled")

_MOST_NUMBERS = 16  # With more sources the cells have no room for their numbers.
_MOST_LABELS = 30

# The styles of lines, which have the same meaning in all figures.
_INPUT, _NEXT, _THIRD, _FOURTH, _CONTROL = panels.INPUT, panels.NEXT, 2, 3, 4


@dataclasses.dataclass(frozen=True)
class Curve:
  """A metric as a line.

  Attributes:
    metric: one of `resjax.study.analysis.alignment.METRICS`.
    label: the text at the end of the line.
    style: the number of its style in `panels.STYLES`.
    value: turns the metric into the values to draw.
    hollow: see `Line`.
    compared: whether a report of several models compares this curve.
  """

  metric: str
  label: str
  style: int
  value: Callable[[np.ndarray], np.ndarray] = np.asarray
  hollow: bool = False
  compared: bool = False


@dataclasses.dataclass(frozen=True)
class Trajectory:
  """A figure of one or a few metrics over depth.

  Attributes:
    title: the title of the figure.
    unit: the label of the vertical axis.
    curves: the lines of the figure.
    meaning: the text below the figure, which explains it.
    setup: sets the scale and the limits of the vertical axis.
    control: whether the shuffled target is drawn too.
  """

  title: str
  unit: str
  curves: tuple[Curve, ...]
  meaning: str
  setup: Callable[[Axes], object] = lambda axes: axes.set_ylim(bottom=0)
  control: bool = False


def _logarithmic(axes: Axes) -> None:
  axes.set_yscale("log")
  axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
  axes.yaxis.set_major_formatter("{x:,g}")
  axes.yaxis.set_minor_formatter("")


def _ranks(axes: Axes) -> None:
  _logarithmic(axes)
  axes.invert_yaxis()


def _shares(axes: Axes) -> None:
  axes.set_ylim(bottom=0)
  axes.yaxis.set_major_formatter("{x:.0%}")


def _cosines(axes: Axes) -> None:
  axes.axhline(0, color="#888888", linewidth=0.8)


TRAJECTORIES: Mapping[str, Trajectory] = {
  "rank": Trajectory(
    "Rank under the lens",
    "rank, geometric mean (1 is best)",
    (
      Curve("input_log_rank", "input token", _INPUT, np.exp, compared=True),
      Curve("next_log_rank", "next token", _NEXT, np.exp, compared=True),
    ),
    "Rank of the input token and of the next token among all tokens when the state is decoded by "
    "final norm and output embedding; and of a random token, drawn by its frequency. Bands are 95% "
    "intervals.",
    _ranks,
    control=True,
  ),
  "probability": Trajectory(
    "Probability under the lens",
    "probability, mean",
    (
      Curve("input_probability", "input token", _INPUT),
      Curve("next_probability", "next token", _NEXT, compared=True),
    ),
    "Probability that the lens gives to the input token, to the next token and to a random one.",
    control=True,
  ),
  "top1": Trajectory(
    "Most probable token under the lens",
    "share of tokens",
    (
      Curve("top1_is_input", "input token", _INPUT),
      Curve("top1_is_target", "next token", _NEXT),
    ),
    "Share of tokens at which the lens ranks the input token first, or the next token.",
    _shares,
  ),
  "nats": Trajectory(
    "Loss and entropy of the lens",
    "nats, mean",
    (
      Curve("next_nats", "loss of the lens", _NEXT, compared=True),
      Curve("entropy", "entropy", _THIRD),
      Curve("kl_to_final", "KL to the end", _FOURTH, compared=True),
    ),
    "Loss of the lens on the next token, entropy of the lens, and KL(final prediction ‖ lens).",
  ),
  "cosine": Trajectory(
    "Cosine with the embeddings",
    "cosine, mean",
    (
      Curve("cosine_input", "input", _INPUT),
      Curve("cosine_input_normed", "input, normed", _INPUT, hollow=True, compared=True),
      Curve("cosine_next", "next", _NEXT),
      Curve("cosine_next_normed", "next, normed", _NEXT, hollow=True, compared=True),
    ),
    "Cosine between the state and the embedding of the input token, and the output embedding of "
    "the next token; of the state as it is, and after the final norm (normed).",
    _cosines,
  ),
  "projection": Trajectory(
    "Length along the embeddings",
    "projection, mean",
    (
      Curve("projection_input", "input token", _INPUT),
      Curve("projection_next", "next token", _NEXT),
    ),
    "Length of the state along the embedding of the input token, and along the output embedding of "
    "the next token.",
    _cosines,
  ),
  "energy": Trajectory(
    "Energy along both embeddings",
    "share of ‖h‖²",
    (Curve("energy_share", "share", _THIRD, compared=True),),
    "Share of the squared norm of the state that lies in the span of both embeddings.",
  ),
  "norm": Trajectory(
    "Growth of the norm",
    "norm, mean",
    (
      Curve("hidden_norm", "state", _NEXT, compared=True),
      Curve("branch_norm", "branches", _FOURTH),
    ),
    "Norm of the state, and norm of all that the branches added since the position before.",
    _logarithmic,
  ),
}


def figure(alignment: Alignment, trajectory: Trajectory, reading: str) -> Figure:
  """Draws one trajectory of one model over its layers, with its shift."""
  group = alignment.readings[reading]["all"]
  shift = depth_positions.shift_of(alignment, reading=reading)
  made, axes = panels.panel(
    trajectory.title,
    depth_positions.subtitle(alignment, group),
    note=depth_positions.marks(alignment, shift),
  )
  chosen = [_line(curve, alignment, group) for curve in trajectory.curves]
  if trajectory.control and "shuffled" in alignment.readings[reading]:
    last = _line(trajectory.curves[-1], alignment, alignment.readings[reading]["shuffled"])
    chosen.append(dataclasses.replace(last, label="random token", style=_CONTROL, hollow=True))
  panels.layer_axis(axes, depth_positions.num_layers(alignment))
  panels.draw_lines(axes, chosen, trajectory.unit, trajectory.setup)
  panels.draw_shift(axes, alignment, shift)
  return made


def _line(curve: Curve, alignment: Alignment, group: Group) -> Line:
  """Returns a curve of a group of tokens over the layers, with a band of 95% intervals."""
  mean, error = group.metrics[curve.metric], group.standard_errors.get(curve.metric)
  x, ends = depth_positions.places(alignment), None
  if error is not None:
    half = t_quantile(alignment.num_rows - 1) * error
    ends = curve.value(mean - half), curve.value(mean + half)
  return Line(curve.label, x, curve.value(mean), curve.style, curve.hollow, ends)


def compared_curves() -> Iterator[tuple[str, Trajectory, Curve]]:
  """Yields the curves that compare several models, each with its trajectory and its key."""
  for key, trajectory in TRAJECTORIES.items():
    yield from ((key, trajectory, curve) for curve in trajectory.curves if curve.compared)


def overlay(
  alignments: Sequence[Alignment], trajectory: Trajectory, curve: Curve, reading: str
) -> Figure:
  """Draws one curve of several models over relative depth, with rings where the next
  token emerges."""
  groups = [alignment.readings[reading]["all"] for alignment in alignments]
  made, axes = panels.panel(f"{trajectory.title}: {curve.label}", _common(alignments, groups))
  chosen = []
  for style, (alignment, group) in enumerate(zip(alignments, groups, strict=True)):
    line, depth = _line(curve, alignment, group), depth_positions.num_layers(alignment)
    changes: dict[str, Any] = {
      "label": alignment.model,
      "x": line.x / depth,
      "style": style,
      "hollow": False,
    }
    chosen.append(dataclasses.replace(line, **changes))
  panels.relative_axis(axes)
  panels.draw_lines(axes, chosen, trajectory.unit, trajectory.setup)
  for line, alignment in zip(chosen, alignments, strict=True):
    shift = depth_positions.shift_of(alignment, reading=reading)
    at = None if shift is None else shift.emergence.index
    if at is not None:
      axes.plot(line.x[at], line.y[at], "o", markersize=11, markerfacecolor="none", color="#000000")
  return made


def _common(alignments: Sequence[Alignment], groups: Sequence[Group]) -> str:
  """Returns the subtitle for several models: their corpora and numbers of tokens, each once."""
  corpora = dict.fromkeys(alignment.corpus for alignment in alignments)
  counts = dict.fromkeys(f"{group.num_tokens:,}" for group in groups)
  return f"{', '.join(corpora)}  |  n = {', '.join(counts)} tokens"


def group_shifts(alignment: Alignment, reading: str) -> Figure:
  """Draws the shift of each group of tokens as a row."""
  groups = alignment.readings[reading]
  made, axes = panels.panel(
    "The shift by group of tokens", depth_positions.subtitle(alignment, groups["all"])
  )
  x = depth_positions.places(alignment)
  names = [f"{_LABELS[name]}  (n = {group.num_tokens:,})" for name, group in groups.items()]
  for row, name in enumerate(groups):
    panels.draw_row(axes, x, row, depth_positions.shift_of(alignment, name, reading))
  panels.name_rows(axes, names)
  panels.layer_axis(axes, depth_positions.num_layers(alignment))
  return made


def model_shifts(alignments: Sequence[Alignment], reading: str) -> Figure:
  """Draws the shift of each model as a row, by relative depth."""
  groups = [alignment.readings[reading]["all"] for alignment in alignments]
  size = panels.SIZE[0], max(2.4, 1.8 + 0.35 * len(alignments))
  made, axes = panels.panel("The shift of each model", _common(alignments, groups), size)
  for row, alignment in enumerate(alignments):
    x = depth_positions.places(alignment) / depth_positions.num_layers(alignment)
    panels.draw_row(axes, x, row, depth_positions.shift_of(alignment, reading=reading))
  colours = [panels.STYLES[style]["color"] for style in (_INPUT, _NEXT)]
  for text, place, side, colour in (
    ("input token read", 0.0, "left", colours[0]),
    ("neither", 0.5, "center", "#595959"),
    ("next token read", 1.0, "right", colours[1]),
  ):
    axes.text(place, -0.35, text, ha=side, fontsize=panels.LABEL, color=colour)
  panels.name_rows(axes, [alignment.model for alignment in alignments])
  panels.relative_axis(axes)
  return made


def group_ranks(alignment: Alignment, reading: str) -> Figure:
  """Draws the rank of the next token for some groups of tokens over depth."""
  groups, trajectory = alignment.readings[reading], TRAJECTORIES["rank"]
  made, axes = panels.panel(
    "Rank of the next token by group", depth_positions.subtitle(alignment, groups["all"])
  )
  chosen = []
  for style, name in enumerate(_RANK_GROUPS):
    line = _line(trajectory.curves[-1], alignment, groups[name])
    chosen.append(dataclasses.replace(line, label=_LABELS[name], style=style))
  panels.layer_axis(axes, depth_positions.num_layers(alignment))
  panels.draw_lines(axes, chosen, trajectory.unit, trajectory.setup)
  return made


def depth_map(alignment: Alignment) -> Figure | None:
  """Draws the mean weight of each source in each read; None if the model has no such weights."""
  weights = alignment.depth_weights
  if weights is None:
    return None
  readers = ["output" if r.site == "output" else f"{r.layer} {r.site}" for r in weights.readers]
  subtitle = depth_positions.subtitle(alignment, next(iter(alignment.readings.values()))["all"])
  made, axes = panels.panel("Depth attention", subtitle, size=(7.6, 6.6))
  values = np.where(weights.weights != 0, weights.weights, np.nan)
  most = max(1.0, np.abs(weights.weights).max())
  scale: dict[str, Any] = {"cmap": "Blues", "vmin": 0, "vmax": most}
  if (weights.weights < 0).any():  # Such weights do not come from a softmax.
    scale = {"cmap": "PuOr", "vmin": -most, "vmax": most}
  axes.set_facecolor("#E4E4E4")  # Grey shows sources that do not exist yet.
  image = axes.imshow(values, **scale, aspect="auto")
  _ticks(axes.set_xticks, weights.sources, rotation=90)
  _ticks(axes.set_yticks, readers)
  axes.set_xlabel("source")
  axes.set_ylabel("reader (layer and site)")
  made.colorbar(image, ax=axes, label="weight, mean over tokens; grey: none", shrink=0.7)
  if len(weights.sources) <= _MOST_NUMBERS:
    for (row, column), value in np.ndenumerate(values):
      if np.isfinite(value):
        colour = "#FFFFFF" if abs(value) > 0.55 * most else "#000000"
        axes.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=7.5,
                  color=colour)  # fmt: skip
  return made


def _ticks(set_ticks: Callable[..., object], names: Sequence[str], **style: Any) -> None:
  step = -(-len(names) // _MOST_LABELS)
  set_ticks(range(0, len(names), step), names[::step], fontsize=panels.LABEL, **style)
