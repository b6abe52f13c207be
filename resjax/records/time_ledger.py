"""Where the time of a run goes, over all its restarts."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

# What a process does, one thing at a time; the rest of its time is `other`.
PHASES = ("init", "compile", "restore", "input", "dispatch", "device", "eval", "save", "log")

# A row of the account, what it means, and the phases it adds up.
_ROWS = {
  "step": ("training steps", ("dispatch", "device")),
  "input": ("waiting for data", ("input",)),
  "eval": ("evaluation", ("eval",)),
  "save": ("blocked by saving", ("save",)),
  "log": ("metrics and progress", ("log",)),
  "init": ("start: data, model, parameters", ("init",)),
  "compile": ("compilation", ("compile",)),
  "restore": ("restoring", ("restore",)),
  "other": ("anything else", ("other",)),
  "lost": ("steps that were repeated after a restart", ()),
  "down": ("after the last record of a process, until the next one", ()),
}
# What a restart repeats.
_REPEATED = ("step", "input", "eval")
_TIME = "goodput/unix_time"


class Ledger:
  """Counts the seconds of a run by what it does.

    ledger = Ledger(carried(records, resume_step))
    with ledger.phase("input"):
      batch = next(batches)

  Phases nest: while an inner one lasts, the outer one stands still. One thread only.

  Args:
    earlier: of `carried`: seconds per row of the processes before this one.
    on_phase: called with the name of the phase at each change, such as `Watchdog.beat`.
    clock: seconds; for tests.
    wall: seconds since 1970; for tests.
  """

  def __init__(
    self,
    earlier: Mapping[str, float] | None = None,
    *,
    on_phase: Callable[[str], None] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
    wall: Callable[[], float] = time.time,
  ):
    self._earlier = dict(earlier or {})
    self._on_phase, self._clock, self._wall = on_phase, clock, wall
    self._phases = dict.fromkeys((*PHASES, "other"), 0.0)
    self._stack = ["other"]
    self._since = clock()

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Time in this context counts for a phase.

    Raises:
      ValueError: it is not one of PHASES.
    """
    if name not in self._phases:
      raise ValueError(f"phase {name!r} is not known; allowed: {', '.join(PHASES)}")
    self._charge()
    self._stack.append(name)
    self._on_phase(name)
    try:
      yield
    finally:
      self._charge()
      self._stack.pop()
      self._on_phase(self._stack[-1])

  def resume(self, earlier: Mapping[str, float]) -> None:
    """Adds the account of the processes before this one, where it is known only now."""
    self._earlier = dict(earlier)

  def phases(self) -> dict[str, float]:
    """Returns the seconds that this process spent so far in each phase, `other` included."""
    self._charge()
    return dict(self._phases)

  def rows(self) -> dict[str, float]:
    """Returns the seconds per row of the account, over all processes of the run."""
    spent = self.phases()
    return {
      row: self._earlier.get(row, 0.0) + sum(spent[name] for name in names)
      for row, (_, names) in _ROWS.items()
    }

  def record(self) -> dict[str, float]:
    """Returns goodput/ROW in seconds, for metrics.jsonl.

    Where each evaluation's record and one just before each checkpoint have it too, a run that
    resumes from there knows exactly what it repeats.
    """
    found = {f"goodput/{row}": round(seconds, 6) for row, seconds in self.rows().items()}
    return {**found, _TIME: round(self._wall(), 3)}

  def table(self) -> Table:
    """Returns the account as a table: seconds, and share of all."""
    rows = self.rows()
    total = sum(rows.values())
    table = Table(title="where the time went", box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("", footer="total")
    table.add_column("seconds", footer=f"{total:,.1f}", justify="right")
    table.add_column("share", footer="100.0%", justify="right")
    for row, (meaning, _) in _ROWS.items():
      if rows[row] > 0:
        table.add_row(meaning, f"{rows[row]:,.1f}", f"{rows[row] / total:.1%}")
    return table

  def _charge(self) -> None:
    now = self._clock()
    self._phases[self._stack[-1]] += now - self._since
    self._since = now


def carried(
  records: Sequence[Mapping[str, Any]], resume_step: int | None, now: float | None = None
) -> dict[str, float]:
  """Returns the account that a process goes on from.

  It is that of the last record, whatever process wrote it; steps, waiting for data and evaluations
  after the checkpoint count as lost, the time since that record as down.

  Args:
    records: of metrics.jsonl, before what comes after the checkpoint is dropped.
    resume_step: step of the restored checkpoint; None: from the start.
    now: seconds since 1970; None: now.
  """
  known = [record for record in records if _TIME in record]
  if not known:
    return {}
  last = known[-1]
  kept = [r for r in known if resume_step is not None and r["step"] <= resume_step]
  rows = {row: last.get(f"goodput/{row}", 0.0) for row in _ROWS}
  for row in _REPEATED:
    repeated = rows[row] - (kept[-1].get(f"goodput/{row}", 0.0) if kept else 0.0)
    rows[row] -= repeated
    rows["lost"] += repeated
  rows["down"] += max(0.0, (time.time() if now is None else now) - last[_TIME])
  return rows
