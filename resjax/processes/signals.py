"""How SIGTERM and Ctrl-C stop a run."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from resjax import processes

_SOON = 0.05  # seconds until a lost signal is sent again
SIGINT_CODE = 130  # the exit code that shells give a command that Ctrl-C ended


class Interrupted(BaseException):
  """A signal stopped the run, and nothing is lost.

  Like KeyboardInterrupt it is no Exception, which libraries catch: TFDS does where it is imported.

  Args:
    message: the message for the user.
    code: the exit code: 0 after SIGTERM, 130 after Ctrl-C.
    agreed: whether all processes stop here; if not, the others have to be told.
  """

  def __init__(self, message: str, code: int, *, agreed: bool = False):
    super().__init__(message)
    self.code, self.agreed = code, agreed


@contextlib.contextmanager
def stop_at_once() -> Iterator[None]:
  """Lets SIGTERM raise `Interrupted`, while there is nothing to save, or all is saved."""

  def handler(*_: object) -> NoReturn:
    raise Interrupted("stopped; nothing had to be saved; the same command goes on", 0)

  with _handlers({signal.SIGTERM: handler}), _sent_again_if_ignored():
    yield


def send_again(number: int) -> None:
  """Sends a signal to this process soon, from a thread: not where the last one came to nothing."""
  timer = threading.Timer(_SOON, os.kill, (os.getpid(), number))
  timer.daemon = True
  timer.start()


@contextlib.contextmanager
def _sent_again_if_ignored() -> Iterator[None]:
  """Sends SIGTERM or Ctrl-C again where Python has ignored what its handler raised.

  It ignores what is raised in a callback of the garbage collector, where JAX has one, and in a
  finalizer.
  """
  before = sys.unraisablehook

  def hook(ignored: "sys.UnraisableHookArgs") -> None:
    number = {Interrupted: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}.get(ignored.exc_type)
    if number:
      send_again(number)
    else:
      before(ignored)

  sys.unraisablehook = hook
  try:
    yield
  finally:
    sys.unraisablehook = before


class StopRequest:
  """Tells whether SIGTERM or Ctrl-C has come, here or in another process.

  A single process notes its signal itself. Several hand it to JAX's preemption service, which tells
  all of them to stop at the same tick.

  Attributes:
    asked: whether the run is to stop.
    code: the exit code that the signal asks for.
  """

  def __init__(self) -> None:
    self.asked, self.code = False, 0
    self._ticks = 0

  def tick(self) -> bool:
    """Counts a step or a batch of an evaluation, and returns whether to stop after it.

    All processes call this equally often.
    """
    self._ticks += 1
    if processes.active():
      self.asked = self.asked or processes.reached_sync_point(self._ticks)
    return self.asked

  def on_signal(self, number: int, frame: object) -> None:
    """Handles SIGTERM and the first Ctrl-C, and leaves the second Ctrl-C to Python."""
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
  """Turns SIGTERM and the first Ctrl-C in this context into a request, which it gives."""
  request = StopRequest()
  with _handlers({signal.SIGINT: request.on_signal, signal.SIGTERM: request.on_signal}):
    if processes.active():
      processes.listen_for_preemption()  # from now on JAX handles SIGTERM
    yield request


@contextlib.contextmanager
def _handlers(handlers: dict) -> Iterator[None]:
  """Sets signal handlers in this context, by number; signals reach the main thread alone."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
  try:
    yield
  finally:
    for number, handler in before.items():
      # None: it was not set from Python, which cannot set it again.
      signal.signal(number, signal.SIG_DFL if handler is None else handler)
