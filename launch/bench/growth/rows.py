"""Rows of the table of growth: what something costs at several sizes, and how fast it may grow."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# What a slope may be above its exponent. A count of the compiler is the same every time, and has
# what grows more slowly beside it; what is measured has the other programs of the machine, too.
COUNTED, MEASURED = 0.05, 0.25


@dataclasses.dataclass(frozen=True)
class Asked:
  """What a part of the table is asked for.

  Attributes:
    sizes: from the smallest on, two or more.
    systems: the residual systems, of configs/ablations.
    topology: the chip that steps are compiled for; "" for this machine.
    command: what asks for the same part and sizes.
  """

  sizes: Sequence[int]
  systems: Sequence[str]
  topology: str
  command: str


@dataclasses.dataclass(frozen=True)
class Bar:
  """What a cost may do while a size grows.

  Attributes:
    exponent: it may grow as the size to this power; None: as it likes.
    why: what makes that the right power.
    least: the least that it may be at any size.
  """

  exponent: float | None
  why: str
  least: float = 0.0


@dataclasses.dataclass(frozen=True)
class Row:
  """One cost at several sizes.

  Attributes:
    part: the part of the table.
    subject: what has the cost, such as a residual system.
    cost: what is counted or measured, with its unit.
    size: what grows, with its unit.
    costs: the cost at each size, from the smallest size on; each is above 0.
    bar: what it may do.
    counted: whether it is a count of the compiler, which is the same in every run.
    command: what gives the figures again.
  """

  part: str
  subject: str
  cost: str
  size: str
  costs: Mapping[int, float]
  bar: Bar
  counted: bool
  command: str

  def __post_init__(self) -> None:
    for size, cost in self.costs.items():
      if not cost > 0:
        name = f"{self.cost} of {self.subject}"
        raise ValueError(f"{name} is {cost} at {size} {self.size}; needed: more than 0")

  @property
  def slopes(self) -> list[float]:
    """The power of the size that the cost grows as, between each size and the next."""
    return [
      math.log(cost / before) / math.log(size / smaller)
      for (smaller, before), (size, cost) in itertools.pairwise(self.costs.items())
    ]

  @property
  def problem(self) -> str:
    """What the cost does that it may not, in words; empty if there is nothing."""
    bar, slack = self.bar, COUNTED if self.counted else MEASURED
    where = f"{self.part}: {self.cost} of {self.subject}"
    if bar.exponent is not None and (steepest := max(self.slopes)) > bar.exponent + slack:
      return f"{where} to the power {steepest:.2f} of {self.size}, allowed: {bar.exponent:g}"
    if (lowest := min(self.costs.values())) < bar.least:
      return f"{where} is {lowest:.3g}, allowed: {bar.least:g} or more"
    return ""

  def to_json(self) -> dict[str, Any]:
    """Returns the row with its slopes, and what the largest size costs per unit of size."""
    largest = list(self.costs)[-1]
    return {
      "part": self.part,
      "subject": self.subject,
      "cost": self.cost,
      "size": self.size,
      "costs": {str(size): cost for size, cost in self.costs.items()},
      "slopes": [round(slope, 3) for slope in self.slopes],
      "per unit of size": self.costs[largest] / largest,
      "exponent": self.bar.exponent,
      "least": self.bar.least,
      "why": self.bar.why,
      "counted": self.counted,
      "problem": self.problem,
      "command": self.command,
    }


def made(
  part: str,
  subject: str,
  size: str,
  found: Mapping[int, Mapping[str, float]],
  bars: Mapping[str, Bar],
  command: str,
  counted: bool = False,
) -> Iterator[Row]:
  """Yields a row for each cost that a bar is given for; see `Row` for the other arguments.

  Args:
    part: the part of the table.
    subject: what has the costs.
    size: what grows, with its unit.
    found: the costs by their names, for each size.
    bars: what each cost may do.
    command: what gives the figures again.
    counted: whether they are counts of the compiler.
  """
  for cost, bar in bars.items():
    costs = {number: figures[cost] for number, figures in found.items()}
    yield Row(part, subject, cost, size, costs, bar, counted, command)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns rows, as `Row.to_json` has them, as Markdown: a table and its bars for each part."""
  parts: dict[str, list[Mapping[str, Any]]] = {}
  for row in rows:
    sizes = ", ".join(f"{int(size):,}" for size in row["costs"])
    parts.setdefault(f"### {row['part']}: {sizes} {row['size']}", []).append(row)
  return "\n".join(_part(title, found) for title, found in parts.items())


def _part(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
  columns = list(dict.fromkeys(row["cost"] for row in rows))
  lines = [title, "", f"| | {' | '.join(columns)} | command |"]
  lines.append("|---" * (len(columns) + 2) + "|")
  subjects = {row["subject"]: row["command"] for row in rows}
  cells = {(row["subject"], row["cost"]): _cell(row) for row in rows}
  for subject, command in subjects.items():
    found = (cells.get((subject, column), "") for column in columns)
    lines.append(f"| `{subject}` | {' | '.join(found)} | `{command}` |")
  reasons = dict.fromkeys(f"- {row['cost']}, {_allowed(row)}: {row['why']}" for row in rows)
  return "\n".join([*lines, "", *reasons, ""])


def _cell(row: Mapping[str, Any]) -> str:
  first, *_, last = row["costs"].values()
  slope = f"{max(row['slopes']):.2f}"
  return f"{_short(first)} to {_short(last)}, {f'**{slope}**' if row['problem'] else slope}"


def _allowed(row: Mapping[str, Any]) -> str:
  if row["exponent"] is None:
    return f"{row['least']:g} or more"
  return f"at most {row['exponent']:g}"


def _short(number: float) -> str:
  for unit, word in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
    if number >= unit:
      return f"{number / unit:.3g} {word}"
  return f"{number:.3g}"
