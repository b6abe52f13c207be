"""What was measured of one model, all together, and the JSON file that holds it for several."""

import dataclasses
import json
from collections.abc import Sequence

from resjax.analysis.alignment import Alignment
from resjax.analysis.report.heat_table import Cell, HeatText
from resjax.analysis.sensitivity import Sensitivity


@dataclasses.dataclass(frozen=True)
class Results:
  """What was measured of one model.

  Attributes:
    alignment: its figures along depth.
    heat: what a sample text decodes to; None: no text.
    sensitivities: what it loses where its residual path is cut.
  """

  alignment: Alignment
  heat: HeatText | None = None
  sensitivities: Sequence[Sensitivity] = ()


def to_json(results: Sequence[Results]) -> str:
  """Returns the results of several models as JSON."""
  models = [
    {
      "alignment": json.loads(one.alignment.to_json()),
      "heat": None if one.heat is None else dataclasses.asdict(one.heat),
      "sensitivities": [json.loads(found.to_json()) for found in one.sensitivities],
    }
    for one in results
  ]
  return json.dumps({"models": models}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> list[Results]:
  """Returns what `to_json` wrote."""
  return [
    Results(
      alignment=Alignment.from_json(json.dumps(one["alignment"])),
      heat=None if one["heat"] is None else _heat(one["heat"]),
      sensitivities=[Sensitivity.from_json(json.dumps(found)) for found in one["sensitivities"]],
    )
    for one in json.loads(text)["models"]
  ]


def _heat(fields: dict) -> HeatText:
  cells = [[Cell(**cell) for cell in row] for row in fields["cells"]]
  return HeatText(fields["tokens"], fields["columns"], cells, fields["corpus"])
