"""A thread that prints the stacks of all threads when a run no longer goes on."""

import faulthandler
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TextIO

from resjax.base import locations
from resjax.base.locations import Location

STACKS = "stacks.txt"

# These phases are one long piece of work each, so they may take so many times the usual allowance.
_PATIENCE = {"init": 6.0, "compile": 6.0, "restore": 6.0}


class Watchdog:
  """Writes the stacks of all threads once per stall, and lets the run go on; a context manager.

  A run is stalled when a phase of its ledger, such as a step or a batch of an evaluation, takes
  longer than allowed: `seconds`, and 6 times that for init, compile and restore. No Python thread
  runs while a C extension holds the interpreter's lock; if that lasts longer than allowed,
  faulthandler's own thread writes the stacks to standard error.

  Args:
    seconds: config.health.watchdog_seconds; 0: there is no watchdog.
    path: the file that stacks are appended to; None: they go to the stream alone.
    stream: where stacks are written; None: standard error.
    clock: returns seconds; for tests.
  """

  def __init__(
    self,
    seconds: float,
    path: Location | None,
    *,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._seconds, self._path, self._stream, self._clock = seconds, path, stream, clock
    self._mark = "init", clock()
    self._stalled: tuple[str, float] | None = None
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

  def __enter__(self) -> "Watchdog":
    if self._seconds:
      self._thread.start()
    return self

  def __exit__(self, *exc: object) -> None:
    self._stop.set()
    if self._seconds:
      self._thread.join()

  def beat(self, phase: str) -> None:
    """Takes note that a phase begins; this takes well below a microsecond."""
    # A single assignment, so that the thread sees the old pair or the new one.
    self._mark = phase, self._clock()

  def allowance(self, phase: str) -> float:
    """Returns the seconds that a phase may take."""
    return self._seconds * _PATIENCE.get(phase, 1.0)

  def check(self) -> None:
    """Writes the stacks when a stall is noticed, and one line when it is over."""
    mark, now = self._mark, self._clock()
    if self._stalled is not None and mark is not self._stalled:
      self._write(f"watchdog: going on, {now - self._stalled[1]:.0f} s after the stall began\n")
      self._stalled = None
    phase, since = mark
    waited, allowed = now - since, self.allowance(phase)
    if waited <= allowed or mark is self._stalled:
      return
    self._stalled = mark
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - waited))
    self._write(
      f"watchdog: nothing ended for {waited:.0f} s, since {began} in phase {phase!r}, which may "
      f"take {allowed:g} s (config.health.watchdog_seconds={self._seconds:g}); still waiting; "
      f"stacks of all threads:\n{_stacks()}"
    )

  def _watch(self) -> None:
    interval = min(1.0, self._seconds / 10)
    try:
      while not self._stop.wait(interval):
        self.check()
        # The dump is put off again and again, as long as this thread runs at all.
        if sys.__stderr__ is not None:
          faulthandler.dump_traceback_later(self.allowance(self._mark[0]), file=sys.__stderr__)
    finally:
      faulthandler.cancel_dump_traceback_later()

  def _write(self, text: str) -> None:
    # The stream comes first, because the file system of the workdir may be what hangs.
    print(text, end="", file=self._stream or sys.stderr, flush=True)
    if self._path is None:
      return
    try:
      locations.append_text(self._path, text)
    except Exception as error:  # the library of an object store may raise anything
      print(f"watchdog: cannot write {self._path}: {error}", file=self._stream or sys.stderr)


def _stacks() -> str:
  with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
    faulthandler.dump_traceback(file, all_threads=True)
    file.seek(0)
    return file.read()
