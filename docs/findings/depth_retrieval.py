"""The tables of docs/findings/depth_retrieval.md, from what `resjax depth_retrieval` wrote."""

import json
import pathlib

from resjax.study.statistics import student

PATH = pathlib.Path(__file__).with_suffix("") / "results.json"


def numbers() -> dict[str, str]:
  """Returns the ceiling of the plain stream and the table of each number of layers."""
  stored = json.loads(PATH.read_text())
  found = {f"ceiling_{layers}": f"{value:.3f}" for layers, value in stored["ceilings"].items()}
  for layers in map(int, stored["ceilings"]):
    found[f"table_{layers}"] = _table([c for c in stored["cells"] if c["num_layers"] == layers])
  return found | {"runs": f"{len(stored['cells']):,}"}


def _table(cells: list[dict]) -> str:
  """Returns the mean accuracy over seeds of every system and task, ± half of its 95 % interval."""
  tasks = list(dict.fromkeys(cell["task"] for cell in cells))
  rows: dict[str, dict[str, list[float]]] = {}
  for cell in cells:
    rows.setdefault(cell["system"], {}).setdefault(cell["task"], []).append(cell["accuracy"])
  lines = [f"| system | {' | '.join(tasks)} |", "|---" * (len(tasks) + 1) + "|"]
  for system, row in rows.items():
    cells_of = [_shown(row[task]) for task in tasks]
    lines.append(f"| `{system}` | {' | '.join(cells_of)} |")
  return "\n".join(("", *lines, ""))


def _shown(values: list[float]) -> str:
  found = student(values)
  half = float(found.interval()[1] - found.mean)
  return f"{float(found.mean):.3f} ± {half:.3f}"
