"""The figures of a report with their captions: for each model, and for a comparison of models."""

from collections.abc import Iterator, Sequence

import numpy as np

from resjax.study.analysis import depth_positions
from resjax.study.analysis.alignment import READINGS, Alignment
from resjax.study.analysis.report import alignment_figures
from resjax.study.analysis.report.alignment_figures import TRAJECTORIES, depth_map
from resjax.study.analysis.report.parts import Drawn
from resjax.study.analysis.report.results import Results
from resjax.study.analysis.report.sensitivity_figures import emergence_curves, loss_curves

_ROW = (
  "A dashed line reaches as far as the input token is read, a solid one begins where the next "
  "token emerges, and where dots lie between them neither is read. Bars are 95% intervals; the "
  "thin line spans 10 to 90% of what the next token has in the end. A diamond marks where the lens "
  "begins to say more of the next token than of the input token, empty where neither is read."
)
_READINGS = {
  "closed": "the state after a layer or site as if the layers ended there",
  "read": "what the next site reads",
}


def of_model(alignment: Alignment, prefix: str, reading: str) -> Iterator[Drawn]:
  """Draws the trajectories and groups of tokens of a model; names of files begin with `prefix`."""
  note = f"{describe(alignment)} {_read(reading)}"
  for key, trajectory in TRAJECTORIES.items():
    figure = alignment_figures.figure(alignment, trajectory, reading)
    yield Drawn(f"{prefix}{key}", figure, trajectory.title, trajectory.meaning, note)
  yield Drawn(
    f"{prefix}controls_shift",
    alignment_figures.group_shifts(alignment, reading),
    "The shift by group of tokens",
    "For all tokens, for tokens that differ from the next token, by the frequency of the next "
    "token, and with a random token in the place of the next one, for which there should be no "
    f"shift. {_ROW}",
    note,
  )
  yield Drawn(
    f"{prefix}controls_rank",
    alignment_figures.group_ranks(alignment, reading),
    "Rank of the next token by group",
    "The rank of the next token under the lens for the same groups.",
    note,
  )


def depth_attention(alignment: Alignment, prefix: str) -> Iterator[Drawn]:
  """Draws the depth-attention map, if the combinator has weights of sources."""
  figure = depth_map(alignment)
  if figure is not None:
    caption = "The mean weight with which each site reads each source."
    name, title = f"{prefix}depth_attention", "Depth attention"
    yield Drawn(name, figure, title, caption, describe(alignment), wide=True)


def cuts(one: Results, prefix: str) -> Iterator[Drawn]:
  """Draws the loss and the emergence of a model for cuts of its residual path."""
  for number, found in enumerate(one.sensitivities, 1):
    note = f"Model: {found.model}; corpus: {found.corpus}; n = {found.num_tokens:,} tokens."
    yield Drawn(
      f"{prefix}cuts_{number}",
      loss_curves(found, one.alignment),
      "Loss when a layer is cut",
      "How much the loss grows when the sites of one layer compute alpha x + f(x) in place of "
      "x + f(x), without training. The scale is linear below 0.1 nats. A missing point is a loss "
      "that is not finite.",
      note,
    )
    figure = emergence_curves(found)
    if figure is not None:
      caption = (
        "Where the next token emerges for each of these cuts. A missing point is a model in which "
        "it does not, or at no place that can be named."
      )
      title = "Emergence when a layer is cut"
      yield Drawn(f"{prefix}cuts_{number}_emergence", figure, title, caption, note)


def of_all(alignments: Sequence[Alignment]) -> Iterator[Drawn]:
  """Draws curves of several models in one figure each, over relative depth."""
  reading = next(reading for reading in READINGS if all(reading in a.readings for a in alignments))
  note = " ".join([*map(describe, alignments), _read(reading)])
  title, figure = "The shift of each model", alignment_figures.model_shifts(alignments, reading)
  yield Drawn("overlay_shift", figure, title, _ROW, note)
  for key, trajectory, curve in alignment_figures.compared_curves():
    figure = alignment_figures.overlay(alignments, trajectory, curve, reading)
    title = f"{trajectory.title}: {curve.label}"
    name = f"overlay_{key}_{curve.label.replace(', ', '_').replace(' ', '_')}"
    caption = f"{title}, for each model. The figure of one model explains the curve."
    yield Drawn(name, figure, title, caption, note)


def readings_differ(alignment: Alignment) -> bool:
  """Returns whether both readings were measured and differ."""
  if len(alignment.readings) < len(READINGS):
    return False
  closed, read = (alignment.readings[reading]["all"].metrics for reading in READINGS)
  return any(
    not np.allclose(closed[name], read[name], rtol=1e-4, atol=1e-6, equal_nan=True)
    for name in closed
  )


def _read(reading: str) -> str:
  return f"The figure shows {_READINGS[reading]}."


def describe(alignment: Alignment) -> str:
  """Returns a sentence with the model, the corpus and the number of tokens."""
  tokens = next(iter(alignment.readings.values()))["all"].num_tokens
  depth = f"{depth_positions.num_layers(alignment)} layers"
  return f"Model: {alignment.model} ({depth}); corpus: {alignment.corpus}; n = {tokens:,} tokens."
