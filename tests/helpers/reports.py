"""Results of made-up models, with names and tokens that would break a careless page."""

import dataclasses

import numpy as np

from resjax.study.analysis import depth_positions
from resjax.study.analysis.report.heat_table import Cell, HeatText
from resjax.study.analysis.report.results import Results
from resjax.study.analysis.sensitivity import Sensitivity
from resjax.study.analysis.stream_factors import StreamFactors
from tests.helpers.alignments import SITES, alignment

NAMES = ('<b>run & "quotes"</b>', "deeper")
TOKENS = ("def", "␣f", "<script>alert(1)</script>", "&amp;", "</td>", "\\xe2\\x82", "␣×32", "אב")


def results() -> list[Results]:
  """Two models of different depth, the first one with everything that can be shown."""
  first = alignment(NAMES[0], num_layers=2, depth_weights=True)
  loss = np.array([[5.0, 4.5, 3.01], [3.5, 3.2, 2.99]])
  loss[0, 0] = np.nan
  alphas = (0.0, 0.25, 1.0)
  moved = tuple(tuple(alignment(num_layers=2, seed=layer) for _ in alphas) for layer in (0, 1))
  errors, slopes = np.full((2, 3), 0.02), np.array([[-0.1, 0.05], [0.02, 0.0]])
  cuts = Sensitivity(
    NAMES[0], first.corpus, 500, 8, "standard", (0, 1), SITES, alphas, 3.0, loss, errors, slopes,
    np.full((2, 2), 0.01), first, moved,
  )  # fmt: skip
  second = alignment(NAMES[1], num_layers=3, seed=1)
  second = dataclasses.replace(second, readings={"closed": second.readings["closed"]})
  factors = StreamFactors(SITES, np.array([[1.5, 0.8], [0.5, 0.875]]), np.full((2, 2), 0.25))
  return [Results(first, heat(first), [cuts], factors), Results(second)]


def heat(one) -> HeatText:
  """Cells that come round to every token, probability and kind."""
  columns = depth_positions.names(one.positions)
  cells = [
    [
      Cell(
        TOKENS[(row + column) % len(TOKENS)], (3 * row + column) % 11 / 10, column == 0, row == 1
      )
      for column in range(len(columns))
    ]
    for row in range(len(TOKENS))
  ]
  return HeatText(list(TOKENS), columns, cells, one.corpus)
