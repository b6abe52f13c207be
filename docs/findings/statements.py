"""Figures of statements that a JSON file beside this one has whole: its values and its questions.

docs/findings/NAME.json holds `values` (for each arm, such as a model, its value by seed or text),
`contrasts` (pairs of arms whose values belong together, tested as one family), `unit` (what stands
behind a mean), `where` (of what the statement holds) and `command` (what gives the values). A page
has `<!--NAME.ARM-->` for a mean, `<!--NAME.ARM-OTHER-->` for a paired difference,
`<!--NAME.where-->` and `<!--NAME.command-->`.
"""

import dataclasses
import pathlib

from docs.findings import words
from resjax.base import typed_json
from resjax.study.statistics import Contrast, compare

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
  """Returns the figures of every statement that has a file, by the name of the file."""
  return {
    path.stem: typed_json.read(path, Statement).numbers() for path in sorted(FOLDER.glob("*.json"))
  }
