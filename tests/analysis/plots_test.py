"""Plots of sweeps, read back from the figures that are saved."""

import resource

import pytest
from matplotlib.figure import Figure

from configs import tiny
from resjax.analysis import plots
from resjax.sweeps import table
from resjax.sweeps.results import result
from resjax.sweeps.runs import expand

LAYERS, ALPHA = "model.residual.attenuation.layers", "model.residual.attenuation.alpha"


@pytest.fixture
def figures(monkeypatch):
  """Returns a list that gets every figure that is saved."""
  found, save = [], plots.save
  monkeypatch.setattr(plots, "save", lambda f, path: (found.append(f), save(f, path)))
  return found


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


def _assert_png(path):
  assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 5000


def test_dots_with_the_reference_as_line(figures, tmp_path):
  results = _results([("standard", {}, 2.0), ("other", {}, 1.5), ("waiting", {}, None)])
  _assert_png(table.plot(results, None, "title", tmp_path))
  loss, parameters, speed, state = figures[0].axes
  for axes, label, values in (
    (loss, "bits per byte", [2.0, 1.5]),
    (parameters, "parameters", [1000, 1000]),
    (state, "bytes per token", [512, 320]),
  ):
    line, dots = axes.lines
    assert list(line.get_xdata()) == [values[0]] * 2 and list(dots.get_xdata()) == values
    assert label in axes.get_xlabel()
    assert line.get_label() == f"standard: {values[0]:,g}"
  assert [label.get_text() for label in loss.get_yticklabels()] == ["standard", "other"]
  assert "tokens per second" in speed.get_xlabel() and len(speed.lines) == 1  # No speeds.
  assert figures[0].get_suptitle() == "title"


def test_curves_over_a_setting_and_the_rest_as_levels(figures, tmp_path):
  cuts = [
    (f"cut{layer}-{alpha}", {LAYERS: (layer,), ALPHA: alpha}, 1.0 + layer + alpha)
    for layer in (2, 0)
    for alpha in (0.0, 0.5)
  ]
  results = _results([("standard", {}, 2.0), *cuts, ("gate", {}, 1.5)])
  _assert_png(table.plot(results, (LAYERS, ALPHA), "title", tmp_path))
  (axes,) = figures[0].axes
  drawn = {line.get_label(): line for line in axes.lines}
  assert set(drawn) == {"alpha = 0.0", "alpha = 0.5", "standard: 2.0000", "gate: 1.5000"}
  points = drawn["alpha = 0.5"].get_xydata().tolist()
  assert points == [[0.0, 1.5], [2.0, 3.5]]  # They are in the order of the layers.
  assert axes.get_xlabel() == "layers"
  styles = {(line.get_marker(), line.get_linestyle()) for line in axes.lines}
  assert len(styles) == 4  # They can be told apart without colour.


def test_no_plot_of_nothing(tmp_path):
  assert table.plot(_results([("standard", {}, None)]), None, "title", tmp_path) is None
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["$a_{$", r"\$x$ $", "[/x] %s {}", "a\udcffb\x1b[31m", "a\nb"])
def test_a_name_is_drawn_as_it_is(name, tmp_path):
  plots.training_curves([{"step": 1, "train/loss": 1.0}], name, tmp_path / "curves.png")
  values = {name: 1.0, "b": 2.0}
  plots.sweep_dots({"x": values, "y": values}, name, name, tmp_path / "dots.png")
  plots.sweep_curves({name: [(0, 1.0)]}, {name: 2.0}, name, name, tmp_path / "lines.png")
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
