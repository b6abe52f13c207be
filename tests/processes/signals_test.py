"""A signal that arrives where Python ignores exceptions still stops what is under way."""

import gc
import signal
import sys
import time

import pytest

from resjax.processes import signals


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


@pytest.mark.parametrize("where", [in_a_finalizer, in_a_callback_of_the_garbage_collector])
@pytest.mark.parametrize(
  ("number", "error"),
  [(signal.SIGTERM, signals.Interrupted), (signal.SIGINT, KeyboardInterrupt)],
  ids=["SIGTERM", "Ctrl-C"],
)
def test_an_ignored_interrupt_comes_again(where, number, error):
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
