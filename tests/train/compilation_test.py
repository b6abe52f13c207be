"""Steps are compiled in threads, beside what else a run does before its first one."""

import threading
import types

import jax
import pytest

from resjax.train.compilation import Compilation

GOES_ON = types.SimpleNamespace(asked=False)
STOPS = types.SimpleNamespace(asked=True)


class Steps:
  """Programs whose steps add one, two and three to a number."""

  def lower_train_step(self):
    return _adding(1)

  def lower_eval_step(self):
    return _adding(2)

  def lower_alignment_step(self):
    return _adding(3)


def _adding(number):
  return jax.jit(lambda x: x + number).lower(0)


@pytest.mark.parametrize("alignment", [True, False])
def test_steps_come_in_their_order(alignment):
  steps = Compilation(Steps(), alignment=alignment).wait(GOES_ON)
  assert [int(step(0)) for step in steps] == [1, 2, 3][: 2 + alignment]


def test_what_is_wrong_with_one_of_them_is_said():
  class Wrong(Steps):
    def lower_eval_step(self):
      raise ValueError("T does not divide")

  with pytest.raises(ValueError, match="T does not divide"):
    Compilation(Wrong(), alignment=True).wait(GOES_ON)


def test_a_stop_waits_for_no_step():
  ends = threading.Event()

  class Endless(Steps):
    def lower_train_step(self):
      ends.wait()
      return _adding(1)

  begun = Compilation(Endless(), alignment=False)
  assert begun.wait(STOPS) is None
  ends.set()
  assert len(begun.wait(GOES_ON)) == 2
