"""How the loss of a model depends on where its residual path is cut, and by how much."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from resjax.analysis.alignment import Alignment


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """Loss, and alignment, of one model on one corpus, its residual path cut at one layer at a time.

  Attributes:
    model: its name.
    corpus: its name.
    num_tokens: targets that the losses are means over.
    residual: name of the model's combinator.
    layers: that were cut, 0..L-1, ascending.
    sites: of a layer that were cut together, x ← α x + f(x) at each of them.
    alphas: factors α, ascending.
    baseline_loss: of the model as it is, nats per token.
    loss: [layers, alphas] float64, nats per token; NaN or infinite where the model overflows.
    baseline_alignment: of the model as it is, all tokens in one group; None: not measured.
    alignments: of every cut, by layer and alpha; () where they were not measured.
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
    """Returns it as JSON; what is not finite is null."""
    names = [field.name for field in dataclasses.fields(self)]
    fields = {name: getattr(self, name) for name in names}
    fields["loss"] = [[_finite(loss) for loss in row] for row in self.loss.tolist()]
    fields["baseline_loss"] = _finite(self.baseline_loss)
    if self.baseline_alignment is not None:
      fields["baseline_alignment"] = _plain(self.baseline_alignment)
      fields["alignments"] = [[_plain(one) for one in row] for row in self.alignments]
    return json.dumps(fields, allow_nan=False) + "\n"

  @classmethod
  def from_json(cls, text: str) -> "Sensitivity":
    """Returns what `to_json` wrote; finite floats are the same to the last bit, null is NaN."""
    fields = json.loads(text)
    for name in ("layers", "sites", "alphas"):
      fields[name] = tuple(fields[name])
    fields["baseline_loss"] = float(np.array(fields["baseline_loss"], np.float64))
    fields["loss"] = np.array(fields["loss"], np.float64)
    if fields["baseline_alignment"] is not None:
      fields["baseline_alignment"] = _alignment(fields["baseline_alignment"])
    rows = fields["alignments"]
    fields["alignments"] = tuple(tuple(_alignment(one) for one in row) for row in rows)
    return cls(**fields)


def _plain(alignment: Alignment) -> Mapping[str, Any]:
  return json.loads(alignment.to_json())


def _alignment(fields: Mapping[str, Any]) -> Alignment:
  return Alignment.from_json(json.dumps(fields))


def _finite(value: float) -> float | None:
  return value if math.isfinite(value) else None
