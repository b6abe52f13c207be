"""The heat map as a figure: every word can be read in its cell, and is marked without colour."""

import io
import warnings

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from resjax.study.analysis.report.heat_table import Cell, HeatText, fitted, heat_figure
from tests.helpers.reports import TOKENS

WORDS = (*TOKENS, "中文", "😀", "␣internationalisation", "$x$", "∅", "◌\u0301a")


def text(num_tokens, num_layers, sites=("",)):
  """Returns cells with every word in every column; a third are the next token or the input."""
  layers = [f"layer {layer}{site}" for layer in range(num_layers) for site in sites]
  columns = ["embedding", *layers]
  tokens = [WORDS[number % len(WORDS)] for number in range(num_tokens)]
  cells = [
    [
      Cell(WORDS[(t + 3 * p) % len(WORDS)], (7 * t + p) % 11 / 10, (t + p) % 3 == 0, p % 3 == 1)
      for p in range(len(columns))
    ]
    for t in range(num_tokens)
  ]
  return HeatText(tokens, columns, cells, "tiny, validation")


def drawn(heat):
  """Draws the figure; any warning, such as that of a letter the font lacks, is an error."""
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    figure = heat_figure(heat, "run $1$")
    FigureCanvasAgg(figure).print_png(io.BytesIO())
  return figure, figure.axes[0]


@pytest.mark.parametrize(
  ("num_tokens", "num_layers", "sites"),
  [(2, 1, ("",)), (12, 4, (" attention", " mlp")), (40, 32, ("",))],
)
def test_words_stay_in_their_cells(num_tokens, num_layers, sites):
  heat = text(num_tokens, num_layers, sites)
  figure, axes = drawn(heat)
  words = {tuple(map(round, word.get_position())): word for word in axes.texts}
  assert set(words) == set(np.ndindex(len(heat.columns), num_tokens))
  cell = np.abs(axes.transData.transform((1, 1)) - axes.transData.transform((0, 0)))
  for (x, y), word in words.items():
    assert word.get_text() == fitted(heat.cells[y][x].text, 9)
    box = word.get_window_extent()
    assert box.width <= cell[0] and box.height <= cell[1]
  (facts,) = (shown.get_text() for shown in figure.texts if "tiny" in shown.get_text())
  facts = facts.replace("\xa0", " ")
  assert f"run $1$  |  tiny, validation  |  n = {num_tokens} tokens" in facts
  whole = figure.bbox
  for part in (*figure.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.yaxis.label):
    box = part.get_window_extent()
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1


def test_what_a_cell_decodes_to_is_seen_without_colour():
  heat = text(12, 4)
  _, axes = drawn(heat)
  frames = {tuple(np.round(patch.get_center()).astype(int)): patch for patch in axes.patches}
  words = {tuple(map(round, word.get_position())): word for word in axes.texts}
  for (x, y), word in words.items():
    cell, frame = heat.cells[y][x], frames.get((x, y))
    assert word.get_weight() == ("bold" if cell.is_next else "normal")
    assert (frame is not None) == (cell.is_next or cell.is_input)
    assert frame is None or (frame.get_linestyle() == "-") == cell.is_next
    (image,) = axes.images
    behind = image.cmap(image.norm(cell.probability))
    assert contrast(word.get_color(), behind) >= 4.5
    assert frame is None or contrast(frame.get_edgecolor(), behind) >= 4.5
  lightness = [luminance(image.cmap(image.norm(p))) for p in np.linspace(0, 1, 11)]
  assert (np.diff(lightness) < 0).all()


def luminance(colour):
  """Returns the relative luminance of WCAG 2."""
  rgb = np.array(matplotlib.colors.to_rgb(colour))
  return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ (
    0.2126, 0.7152, 0.0722,
  )  # fmt: skip


def contrast(one, other):
  low, high = sorted((luminance(one), luminance(other)))
  return (high + 0.05) / (low + 0.05)


def test_long_texts_and_deep_models_are_thinned_out():
  figure = heat_figure(text(70, 50, (" attention", " mlp")), "run")
  axes = figure.axes[0]
  assert any("n = 64 tokens of 70" in t.get_text().replace("\xa0", " ") for t in figure.texts)
  shown = len(axes.get_xticks())
  names = [label.get_text() for label in axes.get_xticklabels()][:shown]  # Those at the bottom.
  assert names == ["emb.", *(f"{layer} mlp" for layer in range(1, 50, 2))]
  assert len(axes.texts) == 64 * len(names)


@pytest.mark.parametrize(
  ("word", "shown"),
  [
    ("␣residual", "␣residual"),
    ("␣residuals", "␣residua…"),
    ("\\xe2\\x82", "\\xe2\\x82"),
    ("中", "U+4E2D"),
    ("中文", "U+4E2D…"),
    ("a中", "aU+4E2D"),
    ("אב", "U+05D0…"),
    ("😀", "U+1F600"),
    ("∅", "∅"),
    ("", ""),
  ],
)
def test_words_that_are_long_or_that_the_font_lacks(word, shown):
  assert fitted(word, 9) == shown
