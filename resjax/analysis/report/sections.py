"""What a report holds: a section per model, and one that lays several over each other."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from resjax.analysis import depth_positions
from resjax.analysis.alignment import READINGS, Alignment
from resjax.analysis.report import controls, trajectories
from resjax.analysis.report.cuts import loss_curves, switch_curves
from resjax.analysis.report.depth_map import depth_map
from resjax.analysis.report.results import Results
from resjax.analysis.report.trajectories import TRAJECTORIES

_READINGS = {
  "closed": "the state after a layer or site, closed as if the layers ended there",
  "read": "what the next site reads",
}
# The curves that are laid over each other for several models: trajectory and number of its curve.
_OVERLAYS = (
  ("rank", 0),
  ("rank", 1),
  ("probability", 1),
  ("nats", 0),
  ("nats", 2),
  ("cosine", 1),
  ("cosine", 3),
  ("energy", 0),
  ("norm", 0),
)


@dataclasses.dataclass(frozen=True)
class Drawn:
  """A figure of a report.

  Attributes:
    name: of its file, without ending.
    figure: as drawn.
    title: of it.
    caption: what it shows.
    note: of which model, corpus and number of tokens; the figure itself says so too.
    wide: whether it needs more room than a panel.
  """

  name: str
  figure: Figure
  title: str
  caption: str
  note: str
  wide: bool = False


def of_model(alignment: Alignment, prefix: str, reading: str) -> Iterator[Drawn]:
  """Draws trajectories and controls of one model, by one reading.

  Args:
    alignment: of the model.
    prefix: of the names of the files.
    reading: one of `READINGS`.
  """
  note = f"{describe(alignment)} {_read(reading)}"
  for key, trajectory in TRAJECTORIES.items():
    figure = trajectories.figure(alignment, trajectory, reading)
    yield Drawn(f"{prefix}{key}", figure, trajectory.title, trajectory.meaning, note)
  yield Drawn(
    f"{prefix}controls_switch",
    controls.switches(alignment, reading),
    "The switch by group of tokens",
    "Where the switch lies, with its confidence interval, when only tokens with another next token "
    "count, by how frequent the next token is, and when the next token is a random one: then there "
    "should be none.",
    note,
  )
  yield Drawn(
    f"{prefix}controls_rank",
    controls.ranks(alignment, reading),
    "Rank of the next token by group",
    "The rank of the next token under the lens for the same groups.",
    note,
  )


def depth_attention(alignment: Alignment, prefix: str) -> Iterator[Drawn]:
  """Draws the depth-attention map, if the combinator weighs sources."""
  figure = depth_map(alignment)
  if figure is not None:
    caption = "How much each site reads of each source."
    name, title = f"{prefix}depth_attention", "Depth attention"
    yield Drawn(name, figure, title, caption, describe(alignment), wide=True)


def cuts(one: Results, prefix: str) -> Iterator[Drawn]:
  """Draws what a model loses where its residual path is cut, and where it switches then."""
  group = next(iter(one.alignment.readings.values()))["all"]
  for number, found in enumerate(one.sensitivities, 1):
    note = f"Model: {found.model}; corpus: {found.corpus}; n = {found.num_tokens:,} tokens."
    yield Drawn(
      f"{prefix}cuts_{number}",
      loss_curves(found, one.alignment, group.switch),
      "Loss when a layer is cut",
      "What the model loses when one layer's sites leave alpha x + f(x), without training; linear "
      "below 0.1 nats. A point that is missing is a loss that is not finite.",
      note,
    )
    figure = switch_curves(found)
    if figure is not None:
      caption = "Where the switch is in each of these models; a point that is missing: nowhere."
      title = "The switch when a layer is cut"
      yield Drawn(f"{prefix}cuts_{number}_switch", figure, title, caption, note)


def of_all(alignments: Sequence[Alignment]) -> Iterator[Drawn]:
  """Draws the curves of several models over each other, by relative depth."""
  reading = next(reading for reading in READINGS if all(reading in a.readings for a in alignments))
  note = " ".join([*map(describe, alignments), _read(reading)])
  for key, number in _OVERLAYS:
    trajectory = TRAJECTORIES[key]
    curve = trajectory.curves[number]
    figure = trajectories.overlay(alignments, trajectory, curve, reading)
    title = f"{trajectory.title}: {curve.label}"
    name = f"overlay_{key}_{curve.label.replace(', ', '_').replace(' ', '_')}"
    caption = f"{title}, of each model. What that is stands under the same figure of one model."
    yield Drawn(name, figure, title, caption, note)


def readings_differ(alignment: Alignment) -> bool:
  """Whether both readings were measured and are not the same."""
  if len(alignment.readings) < len(READINGS):
    return False
  closed, read = (alignment.readings[reading]["all"].metrics for reading in READINGS)
  return any(
    not np.allclose(closed[name], read[name], rtol=1e-4, atol=1e-6, equal_nan=True)
    for name in closed
  )


def _read(reading: str) -> str:
  return f"Shown is {_READINGS[reading]}."


def describe(alignment: Alignment) -> str:
  """Returns model, corpus and number of tokens in a sentence."""
  tokens = next(iter(alignment.readings.values()))["all"].num_tokens
  depth = f"{depth_positions.num_layers(alignment)} layers"
  return f"Model: {alignment.model} ({depth}); corpus: {alignment.corpus}; n = {tokens:,} tokens."
