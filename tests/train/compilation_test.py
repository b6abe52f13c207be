"""Steps are compiled in threads, beside what else a run does before its first one."""

import threading
import types

import jax
import pytest

from resjax.train.compilation import ALIGNMENT, TRAINING, VALIDATION, Compilation

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


def test_each_step_by_its_name():
  begun = Compilation(Steps(), alignment=True)
  found = {name: int(begun.wait(name, GOES_ON)(0)) for name in (VALIDATION, ALIGNMENT, TRAINING)}
  assert found == {TRAINING: 1, VALIDATION: 2, ALIGNMENT: 3}


def test_an_evaluation_waits_for_no_other_step_and_training_for_all():
  ends = threading.Event()

  class Slow(Steps):
    def lower_alignment_step(self):
      ends.wait()
      return _adding(3)

  begun = Compilation(Slow(), alignment=True)
  assert int(begun.wait(VALIDATION, GOES_ON)(0)) == 2
  assert begun.wait(TRAINING, STOPS) is None
  ends.set()
  assert int(begun.wait(TRAINING, GOES_ON)(0)) == 1


@pytest.mark.parametrize("name", [VALIDATION, ALIGNMENT, TRAINING])
def test_whoever_waits_learns_what_is_wrong_with_any_of_them(name):
  known = threading.Event()

  class Wrong(Steps):
    def lower_train_step(self):
      raise ValueError("T does not divide")

    def lower_alignment_step(self):  # comes last
      known.set()
      return _adding(3)

  begun = Compilation(Wrong(), alignment=True)
  assert known.wait(60)
  with pytest.raises(ValueError, match="T does not divide"):
    begun.wait(name, GOES_ON)


def test_a_stop_waits_for_no_step():
  ends = threading.Event()

  class Endless(Steps):
    def lower_eval_step(self):
      ends.wait()
      return _adding(2)

  begun = Compilation(Endless(), alignment=False)
  assert begun.wait(VALIDATION, STOPS) is None
  ends.set()
  assert int(begun.wait(VALIDATION, GOES_ON)(0)) == 2
