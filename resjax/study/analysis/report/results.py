"""All results for one model, and the JSON file that holds them for several models."""

import dataclasses
import json
from collections.abc import Sequence

from resjax.base import typed_json
from resjax.study.analysis.alignment import Alignment, StoredAlignment, to_plain
from resjax.study.analysis.report.heat_table import HeatText
from resjax.study.analysis.sensitivity import Sensitivity, StoredSensitivity
from resjax.study.analysis.stream_factors import StoredFactors, StreamFactors


@dataclasses.dataclass(frozen=True)
class Results:
  """All results for one model.

  Attributes:
    alignment: its alignment along depth.
    heat: the heat map of a text; None if there is no text.
    sensitivities: its losses for cuts of its residual path.
    factors: by what its sites multiply the stream; None if they do not.
    prefix: says what stands in front of each document.
  """

  alignment: Alignment
  heat: HeatText | None = None
  sensitivities: Sequence[Sensitivity] = ()
  factors: StreamFactors | None = None
  prefix: str = ""


def to_json(results: Sequence[Results]) -> str:
  """Returns the results of several models as JSON."""
  return (
    json.dumps({"models": to_plain(results)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
  )


def from_json(text: str | bytes, where: str = "the results") -> list[Results]:
  """Returns the results that `to_json` wrote.

  Raises:
    ValueError: it is something else; the message begins with `where`.
  """

  def build(stored: _Stored) -> list[Results]:
    return [one.results() for one in stored.models]

  return typed_json.rebuild(text, _Stored, build, where)


@dataclasses.dataclass(frozen=True)
class _StoredResults:
  alignment: StoredAlignment
  heat: HeatText | None
  sensitivities: list[StoredSensitivity]
  factors: StoredFactors | None = None
  prefix: str = ""

  def results(self) -> Results:
    """Returns the results of a model that were stored, with arrays in place of lists."""
    heat = self.heat
    if heat is not None and [len(row) for row in heat.cells] != [len(heat.columns)] * len(
      heat.tokens
    ):
      raise ValueError("heat.cells must have a row for each token, with a cell for each column")
    found = [one.sensitivity() for one in self.sensitivities]
    factors = None if self.factors is None else self.factors.factors()
    return Results(self.alignment.alignment(), heat, found, factors, self.prefix)


@dataclasses.dataclass(frozen=True)
class _Stored:
  models: list[_StoredResults]
