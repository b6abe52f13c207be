"""What the page of a run shows of its parts."""

import itertools
import shlex
from collections.abc import Iterator, Sequence

from resjax.study.analysis.report import parts as html
from resjax.train.runs import history
from resjax.train.runs.history import Part

NOTE = "Dotted lines: where settings or versions changed, by the numbers of the table below."


def section(parts: Sequence[Part]) -> Iterator[str]:
  """Yields the section with the parts of a run, if there are several."""
  if len(parts) < 2:
    return
  ends = [f"{part.first_step - 1}" for part in parts[1:]] + ["end"]
  rows = [
    (str(number), f"{part.first_step} to {end}", changed)
    for number, (part, end, changed) in enumerate(zip(parts, ends, _changed(parts), strict=True), 1)
  ]
  table = html.table("What changed", ("part", "steps", "what changed"), rows)
  yield html.section("history", "What changed while it was trained", table)


def _changed(parts: Sequence[Part]) -> Iterator[str]:
  yield ""
  for before, part in itertools.pairwise(parts):
    found = history.changes(before, part)
    yield "; ".join(map(str, found)) or f"command: {shlex.join(part.environment.command)}"
