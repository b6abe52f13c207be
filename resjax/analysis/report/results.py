"""All results for one model, and the JSON file that holds them for several models."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from resjax.analysis.alignment import Alignment, to_plain
from resjax.analysis.report.heat_table import Cell, HeatText
from resjax.analysis.sensitivity import Sensitivity


@dataclasses.dataclass(frozen=True)
class Results:
  """All results for one model.

  Attributes:
    alignment: its alignment along depth.
    heat: the heat map of a text; None if there is no text.
    sensitivities: its losses for cuts of its residual path.
  """

  alignment: Alignment
  heat: HeatText | None = None
  sensitivities: Sequence[Sensitivity] = ()


def to_json(results: Sequence[Results]) -> str:
  """Returns the results of several models as JSON."""
  return (
    json.dumps({"models": to_plain(results)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
  )


def from_json(text: str) -> list[Results]:
  """Returns the results that `to_json` wrote."""
  return [
    Results(
      alignment=Alignment.from_plain(one["alignment"]),
      heat=None if one["heat"] is None else _heat(one["heat"]),
      sensitivities=[Sensitivity.from_plain(found) for found in one["sensitivities"]],
    )
    for one in json.loads(text)["models"]
  ]


def _heat(fields: dict[str, Any]) -> HeatText:
  cells = [[Cell(**cell) for cell in row] for row in fields["cells"]]
  return HeatText(fields["tokens"], fields["columns"], cells, fields["corpus"])
