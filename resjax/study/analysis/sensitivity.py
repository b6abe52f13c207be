"""The sensitivity of a model: how its loss grows where its residual path is attenuated."""

import dataclasses
import json
import math
from typing import Annotated, Any

import msgspec
import numpy as np

from resjax.base import typed_json
from resjax.study.analysis.alignment import (
  Alignment,
  Count,
  StoredAlignment,
  Values,
  matrix,
  to_plain,
)


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """The loss and alignment of one model on one corpus, with cuts of its residual path.

  A cut replaces x ← x + f(x) by x ← α x + f(x) at some sites of one layer.

  Attributes:
    model: the name of the model.
    corpus: the name of the corpus.
    num_tokens: the number of targets that the losses are means over.
    num_rows: the number of rows of tokens that they lie in; standard errors have one degree of
      freedom less.
    residual: the name of the combinator of the model.
    layers: the layers that were cut, one at a time, 0..L-1, ascending.
    sites: the sites of a layer that were cut together.
    alphas: the factors α, ascending.
    baseline_loss: the loss of the model without a cut, nats per token.
    loss: float64 [layers, alphas], nats per token; NaN or infinite where the model overflows.
    errors: the standard errors of the losses less `baseline_loss` [layers, alphas], from how the
      differences of rows differ; NaN with less than two rows.
    slopes: ∂loss/∂ln α at α = 1 of each site alone, nats per token [layers, sites]: see
      `resjax.study.analysis.first_order`. Where it is positive, the loss falls as α begins to; that
      says nothing of the sign for α = 0.9, where terms of second order may be larger.
    slope_errors: their standard errors [layers, sites], likewise.
    baseline_alignment: the alignment of the model without a cut, with all tokens in one group; None
      if it was not measured.
    alignments: the alignment for every cut, by layer and alpha; empty if not measured.
    prefix: says what stands in front of each document.
  """

  model: str
  corpus: str
  num_tokens: int
  num_rows: int
  residual: str
  layers: tuple[int, ...]
  sites: tuple[str, ...]
  alphas: tuple[float, ...]
  baseline_loss: float
  loss: np.ndarray
  errors: np.ndarray
  slopes: np.ndarray
  slope_errors: np.ndarray
  baseline_alignment: Alignment | None = None
  alignments: tuple[tuple[Alignment, ...], ...] = ()
  prefix: str = ""

  def to_json(self) -> str:
    """Returns the sensitivity as JSON, in which numbers that are not finite are null."""
    return json.dumps(to_plain(self), allow_nan=False) + "\n"

  @classmethod
  def from_json(cls, text: str | bytes, where: str = "the sensitivity") -> "Sensitivity":
    """Returns what `to_json` wrote; null becomes NaN, other floats keep every bit.

    Raises:
      ValueError: it is something else; the message begins with `where`.
    """
    return typed_json.rebuild(text, StoredSensitivity, StoredSensitivity.sensitivity, where)


@dataclasses.dataclass(frozen=True)
class StoredSensitivity:
  """A sensitivity as JSON has it, see `Sensitivity`."""

  model: str
  corpus: str
  num_tokens: Count
  num_rows: Count
  residual: str
  layers: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
  sites: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
  alphas: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
  baseline_loss: float | None
  loss: list[Values]
  errors: list[Values]
  slopes: list[Values]
  slope_errors: list[Values]
  baseline_alignment: StoredAlignment | None
  alignments: list[list[StoredAlignment]]
  prefix: str = ""

  def sensitivity(self) -> Sensitivity:
    """Returns the sensitivity that was stored, with arrays in place of lists.

    Raises:
      ValueError: its parts do not fit each other.
    """
    whole = self.baseline_alignment
    height, width = (0, 0) if whole is None else (len(self.layers), len(self.alphas))
    if len(self.alignments) != height or any(len(row) != width for row in self.alignments):
      raise ValueError(f"alignments must have {height} rows of {width}")
    if whole is not None and any(
      one.positions != whole.positions for row in self.alignments for one in row
    ):
      raise ValueError("alignments must have the positions of baseline_alignment")
    of_cuts, of_sites = len(self.alphas), len(self.sites)
    widths = {"loss": of_cuts, "errors": of_cuts, "slopes": of_sites, "slope_errors": of_sites}
    fields: dict[str, Any] = vars(self) | {
      name: matrix(getattr(self, name), len(self.layers), width, name)
      for name, width in widths.items()
    }
    fields["baseline_loss"] = math.nan if self.baseline_loss is None else self.baseline_loss
    fields["baseline_alignment"] = None if whole is None else whole.alignment()
    fields["alignments"] = tuple(tuple(one.alignment() for one in row) for row in self.alignments)
    return Sensitivity(**fields)
