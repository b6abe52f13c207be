"""How SIGTERM and Ctrl-C stop a run."""

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from resjax.base import processes

_SOON = 0.05  # seconds until a signal that came to nothing is sent again
SIGINT_CODE = 130  # the exit code that shells give a command that Ctrl-C ended


class Interrupted(BaseException):
  """A signal stopped the run, and nothing is lost.

  Like KeyboardInterrupt it is no Exception, which libraries catch: TFDS does where it is imported.

  Args:
    message: the message for the user.
    code: the exit code: 0 after SIGTERM, 130 after Ctrl-C.
    agreed: whether all processes stop here; if not, the others are sent a message.
  """

  def __init__(self, message: str, code: int, *, agreed: bool = False):
    super().__init__(message)
    self.code, self.agreed = code, agreed


_RAISED = KeyboardInterrupt, Interrupted  # what signals raise


@contextlib.contextmanager
def stop_at_once() -> Iterator[None]:
  """Lets SIGTERM raise `Interrupted`, while there is nothing to save, or all is saved.

  Ctrl-C raises KeyboardInterrupt, unless something else handles it.
  """
  with raising(signal.SIGTERM), raising_ctrl_c():
    yield


def raising_ctrl_c() -> contextlib.AbstractContextManager[None]:
  """Lets Ctrl-C, unless something else handles it, raise KeyboardInterrupt for certain."""
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    return raising(signal.SIGINT)
  return contextlib.nullcontext()


@contextlib.contextmanager
def raising(number: int) -> Iterator[None]:
  """Lets SIGTERM raise `Interrupted`, or SIGINT raise KeyboardInterrupt, for certain.

  What the handler of a signal raises may be lost: JAX has a bare `except` where it broadcasts
  shapes and makes a ValueError of what is raised where its C++ compares trees, and Python ignores
  what is raised in finalizers and in callbacks of its collector. So it is raised again until it is
  being handled, and it takes the place of an error that it may have become.

  Args:
    number: the number of the signal.
  """
  insistent = _InsistentHandler(number)
  before = sys.unraisablehook

  def hook(ignored: "sys.UnraisableHookArgs") -> None:
    if not (insistent.insists and isinstance(ignored.exc_value, _RAISED)):
      before(ignored)

  sys.unraisablehook = hook
  try:
    with handlers({number: insistent}):
      yield
  except Exception as error:
    if insistent.insists:
      raise insistent.error() from error
    raise
  finally:
    insistent.ended.set()
    sys.unraisablehook = before


class _InsistentHandler:
  """A signal handler that raises, and raises again while nothing takes that.

  Attributes:
    insists: whether it has raised, and no other handler has taken the signal over.
    ended: set to let the signal that came be: it is not sent again.
  """

  def __init__(self, number: int):
    self.insists = self._resent = False
    self._number, self.ended = number, threading.Event()

  def error(self) -> BaseException:
    """Returns the exception that the signal raises."""
    if self._number == signal.SIGINT:
      return KeyboardInterrupt()
    return Interrupted("stopped; nothing had to be saved; the same command goes on", 0)

  def __call__(self, number: int, frame: object) -> None:
    resent, self._resent = self._resent, False
    if resent and _is_being_handled():
      return  # it was not yet when the signal was sent
    if not self.insists:
      self.insists = True
      # Unlike threading.Thread it takes no lock, which this thread may hold.
      _thread.start_new_thread(self._insist, ())
    raise self.error()

  def _insist(self) -> None:
    while self.insists and not self.ended.wait(_SOON):
      if not _is_being_handled():
        self._resent = self.insists = signal.getsignal(self._number) is self
        os.kill(os.getpid(), self._number)


def _is_being_handled() -> bool:
  """Returns whether the main thread is where an interrupt is caught, or cleans up after one."""
  found: object = sys._current_exceptions().get(threading.main_thread().ident or 0)
  error = found[1] if isinstance(found, tuple) else found  # a tuple until Python 3.12
  while isinstance(error, BaseException):
    if isinstance(error, _RAISED):
      return True
    error = error.__context__
  return False


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
    before = signal.getsignal(signal.SIGINT)
    self._second_ctrl_c = before if callable(before) else signal.default_int_handler
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
    """Handles SIGTERM and the first Ctrl-C, and leaves the second one to the handler before."""
    del frame
    if number == signal.SIGINT:
      self.code = SIGINT_CODE
      signal.signal(signal.SIGINT, self._second_ctrl_c)
      print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)
    if processes.active():
      os.kill(os.getpid(), signal.SIGTERM)
    else:
      self.asked = True


@contextlib.contextmanager
def stop_on_request() -> Iterator[StopRequest]:
  """Turns SIGTERM and the first Ctrl-C in this context into a request, which it gives."""
  request = StopRequest()
  with handlers({signal.SIGINT: request.on_signal, signal.SIGTERM: request.on_signal}):
    if processes.active():
      processes.listen_for_preemption()  # from now on JAX handles SIGTERM
    yield request


@contextlib.contextmanager
def handlers(chosen: dict) -> Iterator[None]:
  """Sets signal handlers in this context, by number; signals reach the main thread alone."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = {number: signal.signal(number, handler) for number, handler in chosen.items()}
  try:
    yield
  finally:
    for number, handler in before.items():
      # None: it was not set from Python, which cannot set it again.
      signal.signal(number, signal.SIG_DFL if handler is None else handler)
