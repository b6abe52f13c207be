"""Shows the alignment of a run: a table for the terminal, and plots."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console

from resjax.base import Location, terminal
from resjax.study.analysis import depth_positions, plots
from resjax.study.analysis.alignment import Alignment
from resjax.study.analysis.alignment_record import from_record
from resjax.study.analysis.plots import Records
from resjax.study.analysis.report import alignment_figures
from resjax.study.analysis.report.alignment_figures import TRAJECTORIES

_WIDTH = 32  # Characters of the scale of ranks.
_MOST_STEPS = 6  # Lines in the plot of several steps.


def alignments(records: Records, workdir: str, corpus: str, site: str) -> list[Alignment]:
  """Returns the alignments that the records of a run hold, in the order of its steps.

  The workdir becomes the name of the model, and `site` is the last site of a layer.
  """
  found = [from_record(r, f"{workdir}, step {r['step']}", corpus, site) for r in records]
  return [one for one in found if one is not None]


def show(found: Alignment, console: Console) -> None:
  """Prints the ranks and probabilities of input and next token after every layer."""
  group = found.readings["closed"]["all"]
  ranks = {name: np.exp(group.metrics[f"{name}_log_rank"]) for name in ("input", "next")}
  worst = max(2.0, *ranks["input"], *ranks["next"])
  table = terminal.Table(title="what the states decode to: input token i, next token n")
  table.numbers("after", justify="left")
  table.numbers("rank i", "rank n", "p(i)", "p(n)")
  table.numbers(_scale_heading(worst), justify="left")
  for i, name in enumerate(depth_positions.names(found.positions)):
    each = [ranks["input"][i], ranks["next"][i]]
    shares = [group.metrics[f"{name}_probability"][i] for name in ("input", "next")]
    cells = [f"{rank:,.1f}" for rank in each] + [f"{share:.3f}" for share in shares]
    table.add_row(name, *cells, _scale(each[0], each[1], worst))
  console.print(table)
  terminal.say(
    console,
    f"rank: geometric mean over {group.num_tokens:,} tokens of the {found.corpus} split; "
    f"{depth_positions.answer(found)}",
  )


def draw(found: Sequence[Alignment], folder: Location, *, keep: bool = False) -> list[Location]:
  """Draws the last alignment over the layers, and a few of all steps; `keep`: see `plots.save`."""
  rank = TRAJECTORIES["rank"]
  files = [folder / "alignment.png"]
  plots.save(alignment_figures.figure(found[-1], rank, "closed"), files[0], keep=keep)
  if len(found) > 1:
    files.append(folder / "alignment_steps.png")
    shown = np.unique(np.linspace(0, len(found) - 1, _MOST_STEPS).round().astype(int))
    some = [found[index] for index in shown]
    plots.save(alignment_figures.overlay(some, rank, rank.curves[1], "closed"), files[1], keep=keep)
  return files


def _scale_heading(worst: float) -> str:
  return f"{worst:,.0f}".ljust(_WIDTH - 1) + "1"


def _scale(input_rank: float, next_rank: float, worst: float) -> str:
  """Returns a line from the worst rank to rank 1, with i at the input token, n at the next one."""
  line = ["·"] * _WIDTH
  for letter, rank in (("i", input_rank), ("n", next_rank)):
    place = round((1 - np.log(rank) / np.log(worst)) * (_WIDTH - 1))
    line[place] = letter if line[place] == "·" else "*"
  return "".join(line)
