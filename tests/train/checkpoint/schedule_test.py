"""When a checkpoint is due, with a clock that the test winds, on one and on several processes."""

import pytest

from resjax.train.checkpoint.schedule import SaveSchedule
from tests.helpers.checkpoints import settings


class Clock:
  """Seconds, as many as the test says."""

  def __init__(self):
    self.now = 100.0

  def __call__(self) -> float:
    return self.now


def saved_after(schedule: SaveSchedule, clock: Clock, seconds: list[float]) -> list[int]:
  """Steps after which it saves, given how long each step takes."""
  steps = []
  for step, passed in enumerate(seconds, 1):
    clock.now += passed
    if schedule.due(step):
      assert schedule.due(step)
      schedule.saved(step)
      steps.append(step)
  return steps


@pytest.mark.parametrize(
  ("changes", "wanted"),
  [
    ({"every": 4, "minutes": 0.0}, [4, 8, 12]),
    ({"every": 0, "minutes": 0.0}, []),
    ({"every": 0, "minutes": 0.5}, [4, 7, 10, 13]),  # the clock starts after the first step
    ({"every": 5, "minutes": 0.5}, [4, 5, 8, 10, 13]),  # a save by steps sets the clock back
    ({"every": 5, "minutes": 1.0}, [5, 10]),
  ],
)
def test_by_steps_and_by_time(changes, wanted):
  clock = Clock()
  assert saved_after(SaveSchedule(settings(**changes), clock), clock, [10.0] * 14) == wanted


@pytest.mark.parametrize("speed", [[0.5] * 2000, [0.001] + [0.5] * 1999, [60.0] + [0.5] * 1999])
def test_time_is_met_within_a_step_and_with_few_meetings(speed):
  clock, meetings = Clock(), []

  def agree(number: int) -> int:
    meetings.append(number)
    return number

  config = settings(every=0, minutes=5.0)
  steps = saved_after(SaveSchedule(config, clock, agree), clock, speed)
  assert steps == [601, 1201, 1801]  # 600 steps of half a second
  assert len(meetings) < 70


def test_all_processes_follow_the_clock_of_process_0():
  answers = []
  first, second = Clock(), Clock()
  second.now = -1e6
  config = settings(every=7, minutes=1.0)
  leader = SaveSchedule(config, first, lambda number: answers.append(number) or number)
  follower = SaveSchedule(config, second, lambda number: answers.pop(0))
  theirs, ours = [], []
  for step in range(1, 60):
    first.now += 11.0
    second.now += 0.3
    for schedule, steps in ((leader, theirs), (follower, ours)):
      if schedule.due(step):
        schedule.saved(step)
        steps.append(step)
    assert not answers  # they met after the same steps
  assert theirs == ours
  assert any(step % 7 for step in ours)
