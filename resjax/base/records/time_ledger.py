"""An account of where the time of a run goes, over all processes that took part in it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from resjax.base import terminal

# A process is in one of these phases at a time; the rest of its time counts as `other`.
PHASES = ("init", "compile", "restore", "input", "dispatch", "device", "eval", "save", "log")

# The rows of the account: what each one means, and the phases that it adds up.
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
# The rows of what a restart repeats.
_REPEATED = ("step", "input", "eval")
_TIME = "goodput/unix_time"
_OPENED = "opened"  # seconds beside the rows: no step waits for them


class Ledger:
  """Counts the seconds of a run by activity.

    ledger = Ledger()
    ledger.resume(carried(records, resume_step))
    with ledger.phase("input"):
      batch = next(batches)

  Phases may be nested: the clock of the outer one stands still while the inner one lasts. One
  thread alone may use a ledger.

  Args:
    on_phase: is called with the name of the phase at each change; an example is `Watchdog.beat`.
    clock: returns seconds; for tests.
    wall: returns seconds since 1970; for tests.
  """

  def __init__(
    self,
    *,
    on_phase: Callable[[str], None] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
    wall: Callable[[], float] = time.time,
  ):
    self._earlier: dict[str, float] = {}
    self._opening: list[Callable[[], float]] = []
    self._followers, self._clock, self._wall = [on_phase], clock, wall
    self._phases = dict.fromkeys((*PHASES, "other"), 0.0)
    self._stack = ["other"]
    self._since = clock()

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Counts the time in this context for a phase.

    Raises:
      ValueError: the name is not one of `PHASES`.
    """
    if name not in self._phases:
      raise ValueError(f"phase {name!r} is not known; allowed: {', '.join(PHASES)}")
    self._charge()
    self._stack.append(name)
    self._tell()
    try:
      yield
    finally:
      self._charge()
      self._stack.pop()
      self._tell()

  @contextlib.contextmanager
  def follow(self, on_phase: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the name of the phase at each change in this context, too."""
    self._followers.append(on_phase)
    try:
      yield
    finally:
      self._followers.remove(on_phase)

  def resume(self, earlier: Mapping[str, float]) -> None:
    """Takes the account of earlier processes of the run, as `carried` returns it."""
    self._earlier = dict(earlier)

  def beside(self, opening: Callable[[], float]) -> None:
    """Takes what returns the seconds spent on opening saved checkpoints, in the background."""
    self._opening.append(opening)

  def opened(self) -> float:
    """Returns the seconds spent on opening saved checkpoints, over all processes of the run."""
    return self._earlier.get(_OPENED, 0.0) + sum(opening() for opening in self._opening)

  def phases(self) -> dict[str, float]:
    """Returns the seconds that this process spent so far in each phase, `other` included."""
    self._charge()
    return dict(self._phases)

  def rows(self) -> dict[str, float]:
    """Returns the seconds of each row of the account, over all processes of the run."""
    spent = self.phases()
    return {
      row: self._earlier.get(row, 0.0) + sum(spent[name] for name in names)
      for row, (_, names) in _ROWS.items()
    }

  def record(self) -> dict[str, float]:
    """Returns the seconds of each row as goodput/ROW, for metrics.jsonl, and goodput/opened.

    A resumed run can tell repeated work exactly if every evaluation has such a record, and one is
    written just before every checkpoint.
    """
    seconds = self.rows() | {_OPENED: self.opened()}
    found = {f"goodput/{row}": round(value, 6) for row, value in seconds.items()}
    return {**found, _TIME: round(self._wall(), 3)}

  def table(self) -> terminal.Table:
    """Returns the account as a table of seconds and of their share of the whole."""
    account = shares(self.rows())
    total = sum(seconds for _, seconds, _ in account)
    table = terminal.Table(title="where the time went", show_footer=True)
    table.add_column("", footer="total")
    table.add_column("seconds", footer=f"{total:,.1f}", justify="right", no_wrap=True)
    table.add_column("share", footer="100.0%", justify="right", no_wrap=True)
    if opened := self.opened():
      table.caption = f"opening saved checkpoints, in the background: {opened:,.1f} s"
    for meaning, seconds, share in account:
      table.add_row(meaning, f"{seconds:,.1f}", f"{share:.1%}")
    return table

  def _tell(self) -> None:
    for follower in self._followers:
      follower(self._stack[-1])

  def _charge(self) -> None:
    now = self._clock()
    self._phases[self._stack[-1]] += now - self._since
    self._since = now


def shares(rows: Mapping[str, float]) -> list[tuple[str, float, float]]:
  """Returns the meaning of each row of an account, its seconds and its share of the whole.

  Args:
    rows: the seconds of each row, as `Ledger.rows` returns them; rows without time are left out.
  """
  total = sum(rows.values())
  return [
    (meaning, rows[row], rows[row] / total)
    for row, (meaning, _) in _ROWS.items()
    if rows.get(row, 0) > 0
  ]


def recorded(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Returns the rows of the last account in the records of a run; empty if there is none."""
  known = [record for record in records if _TIME in record]
  return {row: known[-1].get(f"goodput/{row}", 0.0) for row in _ROWS} if known else {}


def carried(
  records: Sequence[Mapping[str, Any]], resume_step: int | None, now: float | None = None
) -> dict[str, float]:
  """Returns the account that a new process of a run goes on from, for `Ledger.resume`.

  It is the account of the last record, with two changes: what was spent on steps, on waiting for
  data and on evaluations after the checkpoint counts as lost, and the time since that record counts
  as down.

  Args:
    records: the records of metrics.jsonl, with those after the checkpoint.
    resume_step: the step of the restored checkpoint; None: the run starts anew.
    now: seconds since 1970; None: the present time.
  """
  known = [record for record in records if _TIME in record]
  if not known:
    return {}
  last = known[-1]
  kept = [r for r in known if resume_step is not None and r["step"] <= resume_step]
  rows = recorded(known)
  for row in _REPEATED:
    repeated = rows[row] - (kept[-1].get(f"goodput/{row}", 0.0) if kept else 0.0)
    rows[row] -= repeated
    rows["lost"] += repeated
  rows["down"] += max(0.0, (time.time() if now is None else now) - last[_TIME])
  return rows | {_OPENED: last.get(f"goodput/{_OPENED}", 0.0)}
