"""Plots of sweeps, read back from the figures that are saved."""

import itertools
import os
import resource
from unittest import mock

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from configs import tiny
from resjax.study.analysis import plots
from resjax.study.sweeps import table
from resjax.study.sweeps.results import result
from resjax.study.sweeps.runs import expand

LAYERS, ALPHA = "model.residual.attenuation.layers", "model.residual.attenuation.alpha"


def _results(values):
  """Returns results for (name, overrides, bits per byte); None is a run that is not done."""
  runs = expand(tiny.get_config(), [value[:2] for value in values])
  return [
    result(
      run,
      [{"step": run.config.train.steps, "validation/loss": 1.0, "validation/bits_per_byte": bits}]
      if bits
      else [],
      {"parameters": 1000, "state_bytes_per_token": 64 * len(run.name)},
    )
    for run, (_, _, bits) in zip(runs, values, strict=True)
  ]


def _assert_files(figure, folder):
  """Saves a figure as all kinds of file; the PNG file has 200 dots per inch."""
  with mock.patch.dict(os.environ, {plots.WANTED: "svg,pdf"}):
    plots.save(figure, folder / "a.png")
  for ending, start in {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF"}.items():
    content = (folder / f"a.{ending}").read_bytes()
    assert content.startswith(start) and len(content) > 5000
  shape = matplotlib.image.imread(folder / "a.png").shape
  assert shape[:2] == tuple(round(200 * inches) for inches in reversed(figure.get_size_inches()))


def test_dots_with_the_reference_as_line(tmp_path):
  results = _results([("standard", {}, 2.0), ("other", {}, 1.5), ("waiting", {}, None)])
  figure = table.figure(results, None, "title")
  loss, parameters, speed, state = figure.axes
  for axes, label, values in (
    (loss, "bits per byte", [2.0, 1.5]),
    (parameters, "parameters", [1000, 1000]),
    (state, "bytes per token", [512, 320]),
  ):
    *dots, line = axes.lines
    assert list(line.get_xdata()) == [values[0]] * 2
    means = [dot.get_xdata()[0] for dot in dots if dot.get_marker() == "o"]
    assert means == values and label in axes.get_xlabel().replace("\n", " ")
  assert [label.get_text() for label in loss.get_yticklabels()] == ["standard", "other"]
  assert "tokens per second" in speed.get_xlabel() and not speed.lines  # No speeds.
  _assert_files(figure, tmp_path)
  assert figure.get_suptitle() == "title"


def test_curves_over_a_setting_and_the_rest_as_levels(tmp_path):
  cuts = [
    (f"cut{layer}-{alpha}", {LAYERS: (layer,), ALPHA: alpha}, 1.0 + layer + alpha)
    for layer in (2, 0)
    for alpha in (0.0, 0.5)
  ]
  results = _results([("standard", {}, 2.0), *cuts, ("gate", {}, 1.5)])
  figure = table.figure(results, (LAYERS, ALPHA), "title")
  _assert_files(figure, tmp_path)
  (axes,) = figure.axes
  drawn = {line.get_label(): line for line in axes.lines}
  assert set(drawn) == {"alpha = 0.0", "alpha = 0.5", "standard: 2.0000", "gate: 1.5000"}
  points = drawn["alpha = 0.5"].get_xydata().tolist()
  assert points == [[0.0, 1.5], [2.0, 3.5]]  # They are in the order of the layers.
  assert axes.get_xlabel() == "layers"
  styles = {(line.get_marker(), line.get_linestyle()) for line in axes.lines}
  assert len(styles) == 4  # They can be told apart without colour.


def test_no_plot_of_nothing():
  assert table.figure(_results([("standard", {}, None)]), None, "title") is None


@pytest.mark.parametrize("name", ["$a_{$", r"\$x$ $", "[/x] %s {}", "a\udcffb\x1b[31m", "a\nb"])
@pytest.mark.slow
def test_a_name_is_drawn_as_it_is(name, tmp_path):
  values = {name: [1.0], "b": [2.0]}
  for figure in (
    plots.sweep_dots({"x": values, "y": values}, name, name),
    plots.sweep_curves({name: [(0, 1.0)]}, {name: 2.0}, name, name),
  ):
    plots.save(figure, tmp_path / "figure.png", titles=True)
  figure = Figure()
  text = figure.text(0, 0, plots.plain(name))
  shown, is_math = text._preprocess_math(text.get_text())
  assert not is_math and shown == name.replace("\udcff", r"\udcff").replace("\x1b", r"\x1b")


def test_a_full_disk_leaves_the_picture_of_before(tmp_path):
  path = tmp_path / "a.png"
  path.write_bytes(b"before")
  _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
  try:
    with pytest.raises(OSError, match=r"cannot write .*a\.png \(File too large\)"):
      plots.save(Figure(), path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
  assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_a_title_is_drawn_only_where_it_is_asked_for(tmp_path):
  sizes = []
  for titles in (True, False):
    figure = plots.sweep_dots({"x": {"a": [1.0]}}, "a", "A long title")
    plots.save(figure, tmp_path / "a.png", titles=titles)
    sizes.append(figure.axes[0].get_position().height)
  assert sizes[1] > 1.1 * sizes[0]  # The room goes to the axes.


def test_large_and_near_values_have_whole_labels():
  """Where matplotlib would write an offset or a power of ten below the axis."""
  values = {"a": [1_708_928.0], "b": [1_709_000.0]}
  near = {"a": [2.00001], "b": [2.00002]}
  figure = plots.sweep_dots({"parameters": values, "loss": near}, "a", "")
  plots.render(figure, "png")
  for axes in figure.axes:
    assert axes.xaxis.get_offset_text().get_text() == ""
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert len(set(labels)) == len(labels)


def test_four_panels_fit_a_telephone():
  """Which has 370 pixels for a figure: its letters of 10 points are 7 pixels high there."""
  panels = {label: {"gate-depth_mixture": [1.0], "b": [2.0]} for label in "wxyz"}
  figure = plots.sweep_dots(panels, "b", "")
  assert figure.get_size_inches()[0] <= 7 and len(figure.axes) == 4
  assert len(plots.sweep_dots(dict(list(panels.items())[:3]), "b", "").axes) == 3


def test_seeds_become_a_mean_with_its_interval():
  figure = plots.sweep_dots({"x": {"a": [1.0, 2.0, 3.0], "b": [4.0]}}, "a", "")
  (axes,) = figure.axes
  wide, narrow = (c.lines[2][0].get_segments()[0][:, 0] for c in axes.containers)
  assert wide == pytest.approx([2 - 2.4841, 2 + 2.4841], abs=1e-3)  # t(2) = 4.3027, s = 1
  assert list(narrow) == [4.0, 4.0]


def test_texts_of_many_marks_do_not_touch_and_every_mark_has_its_line():
  marks = [(1000 * n - 0.5, str(n)) for n in (*range(2, 20), 2.001)]
  figure = plots.curve(
    [{"step": 20_000, "train/loss": 1.0}, {"step": 1, "train/loss": 2.0}], "train/loss", marks
  )
  figure.draw_without_rendering()
  (axes,) = figure.axes
  lines = sorted(line.get_xdata()[0] for line in axes.lines[1:])
  assert lines == sorted(step for step, _ in marks)
  boxes = [text.get_window_extent() for text in axes.texts]
  assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
  texts = [text.get_text() for text in axes.texts]
  assert texts[0].startswith("2-") and texts[-1].endswith("19") and len(texts) > 2
