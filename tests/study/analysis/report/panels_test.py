"""Lines and their labels, read back from the figure."""

import dataclasses
import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.text import Text

from resjax.study.analysis.report import (
  alignment_figures,
  panels,
  reading_figures,
  sensitivity_figures,
)
from resjax.study.analysis.report.panels import Line
from resjax.study.analysis.sensitivity import Sensitivity
from resjax.study.analysis.tuned_lens import Comparison
from tests.helpers.alignments import alignment


def luminance(colour):
  parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
  linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
  return np.dot([0.2126, 0.7152, 0.0722], linear)


def test_styles_differ_without_colour_and_can_be_read_on_white():
  for part in ("linestyle", "marker", "color"):
    assert len({str(style[part]) for style in panels.STYLES}) == len(panels.STYLES)
  for style in panels.STYLES:  # WCAG 2.1: 4.5 : 1 for text
    assert 1.05 / (luminance(style["color"]) + 0.05) > 4.5


def test_bands_are_intervals_of_students_t():
  """Of 8 rows, whose standard errors are those of 7 degrees of freedom: t = 2.3646."""
  tokens, rows, one = 500, 8, np.full((2, 2), 1.0)
  lens = Comparison(tokens, rows, one, one, one / 4, one / 4, one[0], one[0])
  given = alignment(num_layers=2, sites=("mlp",))
  group = given.readings["closed"]["all"]
  errors = dataclasses.replace(group, standard_errors={"next_probability": np.full(3, 0.01)})
  given = dataclasses.replace(given, num_rows=rows, readings={"closed": {"all": errors}})
  cuts = Sensitivity(
    "a", "b", tokens, rows, "standard", (0, 1), ("mlp",), (0.5,), 3.0, np.full((2, 1), 4.0),
    np.full((2, 1), 0.25), one, one,
  )  # fmt: skip
  probability = alignment_figures.TRAJECTORIES["probability"]
  last = group.metrics["next_probability"][-1]
  for figure, error, mean in (
    (reading_figures.lens(lens, given.positions[1:], ""), 0.25, 1.0),
    (sensitivity_figures.loss_curves(cuts, given), 0.25, 1.0),
    (alignment_figures.figure(given, probability, "closed"), 0.01, last),
  ):
    bands = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    heights = bands[0].get_paths()[0].vertices
    at_end = heights[heights[:, 0] == heights[:, 0].max(), 1]
    assert at_end.max() == pytest.approx(mean + 2.364624 * error)
    assert at_end.min() == pytest.approx(mean - 2.364624 * error)


@pytest.mark.parametrize("seed", range(5))
def test_labels_keep_their_order_and_distance(seed):
  heights = np.random.default_rng(seed).uniform(0.4, 0.6, 6)
  heights[1] = heights[0]
  found = panels.apart(heights, np.full(6, 0.1))
  assert np.all(np.diff(np.sort(found)) >= 0.1 - 1e-9)
  assert found.min() >= -1e-9 and found.max() <= 1 + 1e-9
  order = np.argsort(heights, kind="stable")
  assert np.all(np.diff(found[order]) > 0)


def test_labels_that_do_not_touch_stay():
  found = panels.apart(np.array([0.9, 0.1, 0.5]), np.full(3, 0.1))
  np.testing.assert_allclose(found, [0.9, 0.1, 0.5])
  np.testing.assert_allclose(panels.apart(np.array([1.0, 1.0]), np.array([0.1, 0.3])), [0.8, 1.0])
  crowded = np.sort(panels.apart(np.zeros(30), np.full(30, 0.1)))
  np.testing.assert_allclose(crowded, 0.1 * np.arange(30), atol=1e-12)


def test_every_line_has_its_label_within_the_figure():
  figure, axes = panels.panel("title", "of what", note="more")
  x = np.arange(4.0)
  drawn = [Line(f"line {i}", x, x * 0 + 1 + i / 50, i) for i in range(5)]
  drawn.append(Line("ends early", x, np.array([1, 2, np.nan, np.nan]), 5))
  drawn.append(Line("a name of several lines: this one", x, x * 0 + 1.05, 5))
  drawn.append(Line("nothing", x, np.full(4, np.nan), 6))
  panels.draw_lines(axes, drawn, "unit", lambda axes: axes.set_ylim(0, 3))
  FigureCanvasAgg(figure).draw()
  texts = {text.get_text().replace("\n", " ") for text in axes.texts}
  assert texts == {line.label for line in drawn} - {"nothing"}
  size = figure.bbox
  boxes = [Text.get_window_extent(text) for text in axes.texts]  # Without their arrows.
  for box in boxes:
    assert size.x0 <= box.x0 and box.x1 <= size.x1 and size.y0 <= box.y0 and box.y1 <= size.y1
  tall = sorted(boxes, key=lambda box: box.y0)
  assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(tall))
  shown = [text.get_text() for text in figure.texts]
  assert shown == ["title", "of what", "more"]
