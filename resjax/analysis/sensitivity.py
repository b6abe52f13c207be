"""The sensitivity of a model: how its loss grows where its residual path is attenuated."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from resjax.analysis.alignment import Alignment, to_plain


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """The loss and alignment of one model on one corpus, with cuts of its residual path.

  A cut replaces x ← x + f(x) by x ← α x + f(x) at some sites of one layer.

  Attributes:
    model: the name of the model.
    corpus: the name of the corpus.
    num_tokens: the number of targets that the losses are means over.
    residual: the name of the combinator of the model.
    layers: the layers that were cut, one at a time, 0..L-1, ascending.
    sites: the sites of a layer that were cut together.
    alphas: the factors α, ascending.
    baseline_loss: the loss of the model without a cut, nats per token.
    loss: float64 [layers, alphas], nats per token; NaN or infinite where the model overflows.
    baseline_alignment: the alignment of the model without a cut, with all tokens in one group; None
      if it was not measured.
    alignments: the alignment for every cut, by layer and alpha; empty if not measured.
  """

  model: str
  corpus: str
  num_tokens: int
  residual: str
  layers: tuple[int, ...]
  sites: tuple[str, ...]
  alphas: tuple[float, ...]
  baseline_loss: float
  loss: np.ndarray
  baseline_alignment: Alignment | None = None
  alignments: tuple[tuple[Alignment, ...], ...] = ()

  def to_json(self) -> str:
    """Returns the sensitivity as JSON, in which numbers that are not finite are null."""
    return json.dumps(to_plain(self), allow_nan=False) + "\n"

  @classmethod
  def from_json(cls, text: str) -> "Sensitivity":
    """Returns what `to_json` wrote; null becomes NaN, other floats keep every bit."""
    return cls.from_plain(json.loads(text))

  @classmethod
  def from_plain(cls, fields: Mapping[str, Any]) -> "Sensitivity":
    """Returns the sensitivity that `to_plain` turned into dicts."""
    whole, rows = fields["baseline_alignment"], fields["alignments"]
    changed: dict[str, Any] = {name: tuple(fields[name]) for name in ("layers", "sites", "alphas")}
    changed["baseline_loss"] = float(np.array(fields["baseline_loss"], np.float64))
    changed["loss"] = np.array(fields["loss"], np.float64)
    changed["baseline_alignment"] = None if whole is None else Alignment.from_plain(whole)
    changed["alignments"] = tuple(tuple(map(Alignment.from_plain, row)) for row in rows)
    return cls(**{**fields, **changed})
