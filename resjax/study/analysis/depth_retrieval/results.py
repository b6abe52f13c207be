"""What was measured about depth retrieval: the file that keeps it, its table and its plots."""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from matplotlib.figure import Figure
from rich.console import Console

from resjax.base import Location, locations, terminal, typed_json
from resjax.study.analysis import plots
from resjax.study.analysis.depth_retrieval.task import Setup, System, Task, ceiling
from resjax.study.statistics import t_quantile

FILE_NAME = "results.json"


@dataclasses.dataclass(frozen=True)
class Cell:
  """The accuracy of one run.

  Attributes:
    system: the system, as `System.parse` reads it.
    num_layers: L.
    task: the task, as `Task.parse` reads it.
    seed: of all that was drawn.
    accuracy: on new examples.
    cpu_seconds: the share of this run in the time of its program, compilation included.
  """

  system: str
  num_layers: int
  task: str
  seed: int
  accuracy: Annotated[float, msgspec.Meta(ge=0, le=1)]
  cpu_seconds: float

  @property
  def key(self) -> tuple[str, int, str, int]:
    """What tells the run from others."""
    return self.system, self.num_layers, self.task, self.seed


@dataclasses.dataclass(frozen=True)
class Results:
  """All runs in a folder, and the setup that they share."""

  setup: Setup
  cells: tuple[Cell, ...] = ()

  def with_cells(self, cells: Iterable[Cell]) -> "Results":
    """Returns these results and more."""
    return dataclasses.replace(self, cells=(*self.cells, *cells))

  def accuracies(self, system: System, num_layers: int, task: Task) -> list[float]:
    """Returns the accuracies of all seeds, in their order."""
    wanted = (str(system), num_layers, str(task))
    found = {cell.seed: cell.accuracy for cell in self.cells if cell.key[:3] == wanted}
    return [found[seed] for seed in sorted(found)]

  def save(self, folder: Location) -> Location:
    """Writes the file of a folder, with the ceilings of the plain stream, and returns its place."""
    values = dataclasses.asdict(self)
    depths = sorted({cell.num_layers for cell in self.cells})
    values["ceilings"] = {str(n): ceiling(self.setup.num_symbols, n + 1) for n in depths}
    locations.write_text(folder / FILE_NAME, json.dumps(values, indent=1) + "\n")
    return folder / FILE_NAME

  @classmethod
  def load(cls, folder: Location, setup: Setup) -> "Results":
    """Returns the results of a folder, which may have none yet.

    Raises:
      ValueError: the file is no such file, or belongs to another setup.
    """
    file = folder / FILE_NAME
    if not file.exists():
      return cls(setup)
    found = typed_json.read(file, cls)
    for name, value in dataclasses.asdict(setup).items():
      if getattr(found.setup, name) != value:
        given = getattr(found.setup, name)
        raise ValueError(f"{file}: setup.{name} is {given}, here {value}; choose another --out")
    return found


def half_width(values: Sequence[float]) -> float:
  """Returns half the width of Student's 95 % interval of a mean; 0 for one value."""
  if len(values) < 2:
    return 0.0
  return t_quantile(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5


def show(
  results: Results, systems: Sequence[System], num_layers: int, tasks: Sequence[Task], out: Console
) -> None:
  """Prints the mean accuracies with the half widths of their intervals over seeds."""
  table = terminal.Table("system", numbers=map(str, tasks))
  for system in systems:
    table.add_row(str(system), *(_cell(results.accuracies(system, num_layers, t)) for t in tasks))
  out.print(table)
  sources = num_layers + 1
  limit = ceiling(results.setup.num_symbols, sources)
  out.print(
    f"{num_layers} layers: mean accuracy ± half of its 95 % interval over seeds; ceiling of the "
    f"plain stream {limit:.4f}, guessing {1 / results.setup.num_symbols:.4f}"
  )


def _cell(values: Sequence[float]) -> str:
  if not values:
    return "-"
  return f"{statistics.mean(values):.3f} ±{half_width(values):.3f}"


def plot(results: Results, num_layers: int, path: Location) -> None:
  """Draws all accuracies of a depth into files: seeds as dots, and means with their intervals."""
  cells = [cell for cell in results.cells if cell.num_layers == num_layers]
  systems = [System.parse(name) for name in dict.fromkeys(cell.system for cell in cells)]
  tasks = sorted(
    map(Task.parse, {cell.task for cell in cells}),
    key=lambda task: (task.source is None, task.source or 0),
  )
  figure = Figure(figsize=(3.4 + 2.2 * len(tasks), 1.8 + 0.24 * len(systems)), layout="constrained")
  panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
  limit = ceiling(results.setup.num_symbols, num_layers + 1)
  labels = [plots.plain(str(system).replace(":", "\n  ", 1)) for system in systems]
  for axes, task in zip(panels, tasks, strict=True):
    ceiling_line = axes.axvline(limit, color=plots.COLOURS[1], linestyle="--")
    for row, system in enumerate(systems):
      values = results.accuracies(system, num_layers, task)
      if not values:
        continue
      axes.plot(values, [row] * len(values), "o", color=plots.COLOURS[5], markersize=3)
      mean, half = statistics.mean(values), half_width(values)
      axes.errorbar(mean, row, xerr=half, fmt="|", color=plots.COLOURS[0], capsize=3, markersize=9)
    axes.set_title(str(task))
    axes.set_xlim(-0.03, 1.03)
    axes.set_yticks(range(len(systems)), labels, fontsize=7)
    axes.grid(alpha=0.3)
  panels[0].invert_yaxis()
  figure.supxlabel("accuracy: seeds, their mean and its 95 % interval")
  figure.legend(
    [ceiling_line], [f"ceiling of the plain stream, {limit:.3f}"], loc="outside upper right",
    frameon=False,
  )  # fmt: skip
  title = f"Depth retrieval, {num_layers} layers"
  figure.suptitle(title, x=0.02, ha="left", gid=plots.TITLE)
  plots.save(figure, path)
