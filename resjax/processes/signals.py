"""Signals: how a run is asked to stop, and when it does."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from resjax import processes

SIGINT_CODE = 130  # as shells have it


class Interrupted(Exception):
  """A signal stopped the run, and nothing is lost.

  Args:
    message: for the user.
    code: exit code: 0 after SIGTERM, 130 after Ctrl-C.
    agreed: whether all processes stop here; else the others have to be told.
  """

  def __init__(self, message: str, code: int, *, agreed: bool = False):
    super().__init__(message)
    self.code, self.agreed = code, agreed


@contextlib.contextmanager
def stop_at_once() -> Iterator[None]:
  """SIGTERM raises `Interrupted`: nothing is there yet that could be saved, or all is saved."""

  def handler(*_):
    raise Interrupted("stopped; nothing had to be saved; the same command goes on", 0)

  with _handlers({signal.SIGTERM: handler}):
    yield


class StopRequest:
  """Whether SIGTERM or Ctrl-C has come, here or in another process.

  One process notes its signal. Several hand it to JAX's preemption service, which tells all of them
  to stop at one tick.
  """

  def __init__(self):
    self.asked, self.code = False, 0
    self._ticks = 0

  def tick(self) -> bool:
    """Counts a step or a batch of an evaluation; returns whether to stop after it.

    All processes call this alike, from the first tick on.
    """
    self._ticks += 1
    if processes.active():
      self.asked = self.asked or processes.reached_sync_point(self._ticks)
    return self.asked

  def on_signal(self, number: int, frame: object) -> None:
    """Handles SIGTERM and the first Ctrl-C; leaves the next one to Python."""
    del frame
    if number == signal.SIGINT:
      self.code = SIGINT_CODE
      signal.signal(signal.SIGINT, signal.default_int_handler)
      print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)
    if processes.active():
      os.kill(os.getpid(), signal.SIGTERM)
    else:
      self.asked = True


@contextlib.contextmanager
def stop_on_request() -> Iterator[StopRequest]:
  """Turns SIGTERM and the first Ctrl-C in this context into a request."""
  request = StopRequest()
  with _handlers({signal.SIGINT: request.on_signal, signal.SIGTERM: request.on_signal}):
    if processes.active():
      processes.listen_for_preemption()  # takes SIGTERM
    yield request


@contextlib.contextmanager
def _handlers(handlers: dict) -> Iterator[None]:
  before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
