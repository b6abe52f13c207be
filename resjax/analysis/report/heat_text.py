"""The heat map of a text in words."""

import numpy as np

from resjax.analysis import depth_positions
from resjax.analysis.heat_map import HeatMap
from resjax.analysis.report.heat_table import Cell, HeatText
from resjax.analysis.report.pieces import visible
from resjax.data.tokenizer import Tokenizer


def in_words(found: HeatMap, tokens: np.ndarray, tokenizer: Tokenizer, corpus: str) -> HeatText:
  """Returns the cells of a heat map, each token as its visible text.

  Args:
    found: the map; where its probability is NaN, so is the word.
    tokens: of the text [T].
    tokenizer: of the model.
    corpus: where the text is from.
  """

  def word(token: int) -> str:
    return visible(tokenizer.piece(int(token)))

  def cell(first: int, p: float, token: int, after: int | None) -> Cell:
    if np.isnan(p):
      return Cell("NaN", 0.0, False, False)
    return Cell(word(first), float(p), bool(first == token), bool(first == after))

  following = [*map(int, tokens[1:]), None]
  cells = [
    [
      cell(first, p, token, after)
      for first, p in zip(found.tokens[:, t], found.probabilities[:, t], strict=True)
    ]
    for t, (token, after) in enumerate(zip(map(int, tokens), following, strict=True))
  ]
  words = [word(token) for token in tokens]
  return HeatText(words, depth_positions.names(found.positions), cells, corpus)
