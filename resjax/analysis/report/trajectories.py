"""Figures of an alignment over depth: one model alone, or several over relative depth."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from resjax.analysis import depth_positions
from resjax.analysis.alignment import Alignment, Group
from resjax.analysis.report import axis, lines
from resjax.analysis.report.lines import Line

INPUT, NEXT, THIRD, FOURTH, CONTROL = 1, 0, 2, 3, 4  # styles that keep their meaning in all figures


@dataclasses.dataclass(frozen=True)
class Curve:
  """A metric as a line.

  Attributes:
    metric: of `resjax.analysis.alignment.METRICS`.
    label: at the end of the line.
    style: number in `lines.STYLES`.
    value: what is drawn of the metric.
    hollow: see `Line`.
  """

  metric: str
  label: str
  style: int
  value: Callable[[np.ndarray], np.ndarray] = np.asarray
  hollow: bool = False


@dataclasses.dataclass(frozen=True)
class Trajectory:
  """A figure of one or a few metrics over depth.

  Attributes:
    title: of the figure.
    unit: label of the vertical axis.
    curves: its lines.
    meaning: what the figure shows, for the text below it.
    setup: of the vertical axis.
    control: whether the shuffled target is drawn too.
  """

  title: str
  unit: str
  curves: tuple[Curve, ...]
  meaning: str
  setup: Callable[[Axes], None] = lambda axes: axes.set_ylim(bottom=0)
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
      Curve("input_log_rank", "input token", INPUT, np.exp),
      Curve("next_log_rank", "next token", NEXT, np.exp),
    ),
    "Rank of the input token and of the next token among all tokens when the state is decoded by "
    "final norm and output embedding; and of a random token, drawn by its frequency. The switch is "
    "where the next token comes before both and stays there.",
    _ranks,
    control=True,
  ),
  "probability": Trajectory(
    "Probability under the lens",
    "probability, mean",
    (
      Curve("input_probability", "input token", INPUT),
      Curve("next_probability", "next token", NEXT),
    ),
    "Probability that the lens gives to the input token, to the next token and to a random one.",
    control=True,
  ),
  "top1": Trajectory(
    "What the lens puts first",
    "share of tokens",
    (
      Curve("top1_is_input", "input token", INPUT),
      Curve("top1_is_target", "next token", NEXT),
    ),
    "Share of tokens at which the lens ranks the input token first, or the next token.",
    _shares,
  ),
  "nats": Trajectory(
    "How sure the lens is",
    "nats, mean",
    (
      Curve("next_nats", "loss of the lens", NEXT),
      Curve("entropy", "entropy", THIRD),
      Curve("kl_to_final", "KL to the end", FOURTH),
    ),
    "Loss on the next token and entropy of the lens, and KL(final prediction ‖ lens).",
  ),
  "cosine": Trajectory(
    "Cosine to embeddings",
    "cosine, mean",
    (
      Curve("cosine_input", "input", INPUT),
      Curve("cosine_input_normed", "input, normed", INPUT, hollow=True),
      Curve("cosine_next", "next", NEXT),
      Curve("cosine_next_normed", "next, normed", NEXT, hollow=True),
    ),
    "Cosine between the state and the embedding of the input token, and the output embedding of "
    "the next token; of the state as it is, and after the final norm (normed).",
    _cosines,
  ),
  "projection": Trajectory(
    "Length along embeddings",
    "projection, mean",
    (
      Curve("projection_input", "input token", INPUT),
      Curve("projection_next", "next token", NEXT),
    ),
    "Length of the state along the embedding of the input token, and along the output embedding of "
    "the next token.",
    _cosines,
  ),
  "energy": Trajectory(
    "Energy along both embeddings",
    "share of ‖h‖²",
    (Curve("energy_share", "share", THIRD),),
    "Share of the squared norm of the state that lies in the span of both embeddings.",
  ),
  "norm": Trajectory(
    "Growth of the norm",
    "norm, mean",
    (Curve("hidden_norm", "state", NEXT), Curve("branch_norm", "branches", FOURTH)),
    "Norm of the state, and of what the branches since the position before have added.",
    _logarithmic,
  ),
}


def figure(alignment: Alignment, trajectory: Trajectory, reading: str) -> Figure:
  """Draws one model over its layers, with its switch."""
  group = alignment.readings[reading]["all"]
  switch = f"switch: {depth_positions.switch_text(alignment, group.switch)}"
  made, axes = lines.panel(
    trajectory.title, depth_positions.subtitle(alignment, group), note=switch
  )
  x, chosen = depth_positions.places(alignment), []
  for curve in trajectory.curves:
    y = curve.value(group.metrics[curve.metric])
    chosen.append(Line(curve.label, x, y, curve.style, curve.hollow))
  if trajectory.control and "shuffled" in alignment.readings[reading]:
    last, control = trajectory.curves[-1], alignment.readings[reading]["shuffled"]
    y = last.value(control.metrics[last.metric])
    chosen.append(Line("random token", x, y, CONTROL, hollow=True))
  axis.layer_axis(axes, depth_positions.num_layers(alignment))
  axes.set_ylabel(trajectory.unit)
  lines.draw(axes, chosen, trajectory.setup)
  axis.draw_switch(axes, alignment, group.switch)
  return made


def overlay(
  alignments: Sequence[Alignment], trajectory: Trajectory, curve: Curve, reading: str
) -> Figure:
  """Draws one curve of several models over relative depth; the switch of each is a larger ring."""
  groups = [alignment.readings[reading]["all"] for alignment in alignments]
  made, axes = lines.panel(f"{trajectory.title}: {curve.label}", _common(alignments, groups))
  chosen = []
  for style, (alignment, group) in enumerate(zip(alignments, groups, strict=True)):
    x = depth_positions.places(alignment) / depth_positions.num_layers(alignment)
    chosen.append(Line(alignment.model, x, curve.value(group.metrics[curve.metric]), style))
  axis.relative_axis(axes)
  axes.set_ylabel(trajectory.unit)
  lines.draw(axes, chosen, trajectory.setup)
  for line, group in zip(chosen, groups, strict=True):
    if group.switch is not None and group.switch.index is not None:
      at = group.switch.index
      axes.plot(line.x[at], line.y[at], "o", markersize=11, markerfacecolor="none", color="#000000")
  return made


def _common(alignments: Sequence[Alignment], groups: Sequence[Group]) -> str:
  """Corpus and number of tokens of several models, once where they are the same."""
  corpora = dict.fromkeys(alignment.corpus for alignment in alignments)
  counts = dict.fromkeys(f"{group.num_tokens:,}" for group in groups)
  return f"{', '.join(corpora)}  |  n = {', '.join(counts)} tokens  |  ring: the switch"
