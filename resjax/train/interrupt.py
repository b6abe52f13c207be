"""Ctrl-C: the first one asks the loop to stop, the second one stops at once."""

import contextlib
import signal
import sys
from collections.abc import Iterator


class Interrupted(Exception):
  """The user stopped the run; its state is saved."""


class StopRequest:
  """Whether a stop has been asked for."""

  def __init__(self):
    self.asked = False

  def ask(self, *_) -> None:
    """Asks for a stop; as a signal handler, leaves the next signal to Python."""
    self.asked = True
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)


@contextlib.contextmanager
def stop_on_ctrl_c() -> Iterator[StopRequest]:
  """Turns the first Ctrl-C in this context into a request."""
  request = StopRequest()
  before = signal.signal(signal.SIGINT, request.ask)
  try:
    yield request
  finally:
    signal.signal(signal.SIGINT, before)
