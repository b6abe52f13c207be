"""A signal that comes where exceptions are swallowed or replaced still stops what is under way."""

import contextlib
import gc
import signal
import sys
import threading
import time

import jax
import pytest

from resjax.base.processes import signals


class Size(int):
  """A size in whose place a signal comes, once, when JAX looks it up or compares it."""

  number: int | None

  def __hash__(self):
    self.signal()
    return super().__hash__()

  def __eq__(self, other):
    self.signal()
    return super().__eq__(other)

  def signal(self):
    number, self.number = self.number, None
    if number is not None:
      signal.raise_signal(number)


def size(number):
  found = Size(3)
  found.number = number
  return found


def in_the_bare_except_of_jax(number):
  jax.lax.broadcast_shapes((size(number),), (3,))


@jax.tree_util.register_static
class Static:
  def __init__(self, number):
    self.number = number

  def __hash__(self):
    return 0

  def __eq__(self, other):
    number, self.number = self.number, None
    if number is not None:
      signal.raise_signal(number)
    return True


def where_jax_makes_another_error_of_it(number):
  assert jax.tree.structure(Static(number)) == jax.tree.structure(Static(None))


def in_a_finalizer(number):
  class Finalized:
    def __del__(self):
      signal.raise_signal(number)

  Finalized()


def in_a_callback_of_the_garbage_collector(number):
  def callback(*_):
    gc.callbacks.remove(callback)
    signal.raise_signal(number)

  gc.callbacks.append(callback)
  gc.collect()


@pytest.mark.parametrize(
  "where",
  [
    in_a_finalizer,
    in_a_callback_of_the_garbage_collector,
    in_the_bare_except_of_jax,
    where_jax_makes_another_error_of_it,
  ],
)
@pytest.mark.parametrize(
  ("number", "error"),
  [(signal.SIGTERM, signals.Interrupted), (signal.SIGINT, KeyboardInterrupt)],
  ids=["SIGTERM", "Ctrl-C"],
)
def test_a_lost_interrupt_comes_again(where, number, error):
  before = sys.unraisablehook
  with pytest.raises(error), signals.stop_at_once():
    where(number)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
      time.sleep(0.01)
    pytest.fail(f"{number.name} was lost")
  assert sys.unraisablehook is before


def test_other_ignored_errors_are_reported_as_ever(monkeypatch):
  found = []
  monkeypatch.setattr(sys, "unraisablehook", found.append)

  class Wrong:
    def __del__(self):
      raise OSError("wrong")

  with signals.stop_at_once():
    Wrong()
  assert [ignored.exc_type for ignored in found] == [OSError]


def cleaned_up(seconds):
  """A context that takes its time to clean up."""
  with contextlib.ExitStack() as stack:
    stack.callback(time.sleep, seconds)
    yield


def test_a_signal_that_is_sent_again_too_late_interrupts_no_clean_up(monkeypatch):
  """As on a machine with much to do, where the thread that sends has looked long ago."""
  handled, main = signals._is_being_handled, threading.get_ident()
  monkeypatch.setattr(
    signals, "_is_being_handled", lambda: threading.get_ident() == main and handled()
  )
  done = []
  with pytest.raises(KeyboardInterrupt), signals.stop_at_once():
    try:
      signal.raise_signal(signal.SIGINT)
    finally:
      time.sleep(0.3)
      done.append("cleaned up")
  assert done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_nothing_interrupts_what_cleans_up_after_an_interrupt(number):
  done = []
  with pytest.raises((signals.Interrupted, KeyboardInterrupt)), signals.stop_at_once():
    with contextlib.contextmanager(cleaned_up)(0.3):
      try:
        signal.raise_signal(number)
      finally:
        with contextlib.suppress(OSError):
          time.sleep(0.2)
          raise OSError("the clean-up has its own errors")
        done.append("inside")
    done.append("not reached")
  assert done == ["inside"]
  time.sleep(0.2)  # nor what comes later


def test_another_handler_that_takes_a_lost_signal_over_gets_it_once():
  asked = []
  with pytest.raises(OSError, match="full"), signals.raising_ctrl_c():
    handler = signal.getsignal(signal.SIGINT)
    in_the_bare_except_of_jax(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    time.sleep(0.3)
    assert asked == [signal.SIGINT]
    signal.signal(signal.SIGINT, handler)
    time.sleep(0.2)
    raise OSError("full")  # nor does it become another error


def test_the_second_ctrl_c_of_a_run_stops_at_once_for_certain(capsys):
  with pytest.raises(KeyboardInterrupt), signals.stop_at_once(), signals.stop_on_request() as stop:
    signal.raise_signal(signal.SIGINT)
    assert stop.asked and "Ctrl-C again" in capsys.readouterr().err
    in_the_bare_except_of_jax(signal.SIGINT)
    time.sleep(20)


def test_an_ignored_ctrl_c_stays_ignored():
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with signals.stop_at_once(), signals.raising_ctrl_c():
      signal.raise_signal(signal.SIGINT)
  finally:
    signal.signal(signal.SIGINT, before)


def test_other_errors_stay_what_they_are():
  with pytest.raises(OSError, match="full"), signals.stop_at_once():
    raise OSError("full")
