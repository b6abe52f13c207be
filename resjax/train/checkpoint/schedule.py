"""When a checkpoint is due, by steps and by time; all processes agree on it."""

import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from resjax.train.checkpoint.config import CheckpointConfig


def of_process_0(number: int) -> int:
  """Returns the number that process 0 gave; all processes call this together."""
  if jax.process_count() == 1:
    return number
  return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


class SaveSchedule:
  """Tells after which steps to save; every process asks after the same steps.

  An interval in steps needs no agreement. For an interval in time the clock of process 0 decides,
  and the others must hear of that before they go on. So that they need not wait after every step,
  process 0 says after how many steps all ask again: as many as fit into half the time that is left,
  at the speed since the last save, but no more than have passed since then. An interval of n steps
  takes about 2 log2(n) such messages.

  Args:
    config: the intervals.
    clock: returns seconds.
    agree: takes a number of this process and returns that of process 0.
  """

  def __init__(
    self,
    config: CheckpointConfig,
    clock: Callable[[], float] = time.monotonic,
    agree: Callable[[int], int] = of_process_0,
  ):
    self._config, self._clock, self._agree = config, clock, agree
    self._begin: tuple[int, float] | None = None  # the step and the time of the last save
    self._meeting, self._overdue = 0, False  # the step after which all ask again; whether to save

  def due(self, step: int) -> bool:
    """Returns whether to save after a step; until `saved` is called, the answer stays the same."""
    if self._config.minutes and not self._overdue:
      self._meet(step)
    every = self._config.every
    return self._overdue or (every > 0 and step % every == 0)

  def saved(self, step: int) -> None:
    """Takes note that a save began after a step."""
    self._begin, self._meeting, self._overdue = (step, self._clock()), step + 1, False

  def postpone(self) -> None:
    """Takes note that a save was put off: it is due after every step until one begins."""
    self._overdue = True

  def _meet(self, step: int) -> None:
    if self._begin is None:
      self.saved(step)
      return
    if step < self._meeting:
      return
    begin, start = self._begin
    steps, passed = step - begin, self._clock() - start
    left = self._config.minutes * 60 - passed
    # No more steps than were measured: the first ones seem fast, because they wait for nothing.
    wait = max(1, int(min(steps, left / 2 * steps / max(passed, 1e-9)))) if left > 0 else 0
    wait = self._agree(wait)
    self._meeting, self._overdue = step + wait, wait == 0
