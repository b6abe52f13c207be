"""The shift in words, the axis of layers, and names that look like formulas to matplotlib."""

import dataclasses
import itertools

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from resjax.study.analysis import depth_positions
from resjax.study.analysis.report import alignment_figures, panels
from resjax.study.analysis.report.alignment_figures import TRAJECTORIES
from tests.helpers.alignments import alignment


def test_one_row_has_no_interval():
  given = alignment(sites=("mlp",))
  shift = depth_positions.shift_of(given)
  at = f"after {depth_positions.names(given.positions)[shift.emergence.index]} ("
  assert depth_positions.emergence_text(given, shift).startswith(f"{at}95%: ")
  given = dataclasses.replace(given, num_rows=1)
  assert depth_positions.emergence_text(given, shift) == f"{at}one row: no interval)"


def test_the_last_layer_has_its_number():
  for layers in (1, 9, 18, 20, 30, 48):
    axes = Figure().subplots()
    panels.layer_axis(axes, layers)
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert shown[0] == "emb." and shown[-1] == str(layers - 1) and len(shown) <= 10
    assert list(axes.get_xticks()) == [0, *(int(name) + 1 for name in shown[1:])]


@pytest.mark.parametrize("layers", [6, 18, 20, 30, 48])
def test_labels_of_layers_do_not_overlap(layers):
  rank = TRAJECTORIES["rank"]
  figure = alignment_figures.figure(alignment(num_layers=layers, sites=("mlp",)), rank, "closed")
  figure.draw_without_rendering()
  boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
  assert all(right.x0 - left.x1 > 4 for left, right in itertools.pairwise(boxes))


def test_dollars_in_names_are_dollars(tmp_path):
  given = alignment(model=r"$\model$", corpus="$a_{$")
  rank = TRAJECTORIES["rank"]
  drawn = (
    alignment_figures.figure(given, rank, "closed"),
    alignment_figures.overlay([given, given], rank, rank.curves[1], "closed"),
  )
  for number, figure in enumerate(drawn):
    figure.savefig(tmp_path / f"{number}.png")
    named = [text for text in figure.findobj(Text) if "$" in text.get_text()]
    assert named and not any(text.get_parse_math() for text in named)
