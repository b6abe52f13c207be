"""Figures of statements that files beside this one have whole: values and questions.

docs/findings/NAME.json holds `values` (for each arm, such as a model, its value by seed or text),
`contrasts` (pairs of arms whose values belong together, tested as one family), `unit` (what stands
behind a mean), `where` (of what the statement holds) and `command` (what gives the values). A page
has `<!--NAME.ARM-->` for a mean, `<!--NAME.ARM-OTHER-->` for a paired difference,
`<!--NAME.where-->` and `<!--NAME.command-->`.

docs/findings/NAME/ may also be a sweep, with its plan.json and results.json. Then a page has
`<!--NAME.ARM-->` for the difference of an arm from the baseline, `<!--NAME.ARM-OTHER-->` for one
from another reference, either with `.verdict` behind it, `<!--NAME.ARM.SETTING-->` for what was
tuned, and `<!--NAME.margin-->`; of its models, where models.json is there, what
docs/findings/swept_models.py says.
"""

import dataclasses
import pathlib

from docs.findings import swept_models, words
from resjax.base import typed_json
from resjax.study.statistics import Contrast, compare
from resjax.study.sweeps import comparison, plan, table

FOLDER = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Statement:
  """The raw data of a statement, see above."""

  values: dict[str, dict[str, float]]
  where: str
  command: str
  contrasts: tuple[tuple[str, str], ...] = ()
  unit: str = ""

  def numbers(self) -> dict[str, str]:
    """Returns what a page may say of it, by name."""
    found = {"where": self.where, "command": f"`{self.command}`"}
    for arm, by in self.values.items():
      found[arm] = words.mean([*by.values()], self.unit)
    for one in compare(self.values, [Contrast(*pair) for pair in self.contrasts]):
      found[f"{one.contrast.arm}-{one.contrast.reference}"] = words.difference(one)
    return found


def numbers() -> dict[str, dict[str, str]]:
  """Returns the figures of every statement and every sweep, by the name of its file or folder."""
  files = {
    path.stem: typed_json.read(path, Statement).numbers() for path in sorted(FOLDER.glob("*.json"))
  }
  plans = sorted(FOLDER.glob("*/plan.json"))
  return files | {path.parent.name: of_sweep(path.parent) for path in plans}


def of_sweep(folder: pathlib.Path) -> dict[str, str]:
  """Returns what the contrasts of a sweep show, computed from its plan and its runs."""
  planned = plan.read(folder)
  assert planned is not None
  shown = comparison.make(planned, table.read(folder).runs)
  found: dict[str, str] = {}
  for row in (*shown.planned, *shown.afterwards):
    other = row.contrast.reference
    name = row.contrast.arm + f"-{other}" * (other != planned.questions.baseline)
    found[f"{name}.verdict"] = row.verdict + ", within the margin" * row.is_small
    if row.difference is not None and row.margin is not None:
      found[name] = words.difference(row.difference)
      found["margin"] = f"{row.margin:.2g}"
  for arm, values in planned.tuned.items():
    found |= {f"{arm}.{name.rpartition('.')[2]}": f"{value:g}" for name, value in values.items()}
  has_models = (folder / swept_models.FILE_NAME).exists()
  return found | (swept_models.numbers(folder) if has_models else {})
