"""The account of a run's time: one process, several, and what a step waits for."""

import json
import timeit

import pytest
from rich.console import Console

from resjax.base.processes.watchdog import Watchdog
from resjax.base.records.step_time import StepTime
from resjax.base.records.time_ledger import Ledger, carried


class Clock:
  def __init__(self, now=0.0):
    self.now = now

  def __call__(self):
    return self.now


def spend(ledger, clock, name, seconds):
  with ledger.phase(name):
    clock.now += seconds


def rows(**seconds):
  names = ("step", "input", "eval", "save", "log", "init", "compile", "restore", "other", "lost")
  return {**dict.fromkeys((*names, "down"), 0.0), **seconds}


def test_every_second_counts_once():
  clock = Clock()
  ledger = Ledger(clock=clock)
  clock.now += 0.5
  with ledger.phase("init"):
    clock.now += 2
    spend(ledger, clock, "restore", 3)  # inside init, and not init
    clock.now += 1
  spend(ledger, clock, "compile", 7)
  for _ in range(4):
    spend(ledger, clock, "input", 1)
    spend(ledger, clock, "dispatch", 0.25)
    spend(ledger, clock, "device", 2)
    spend(ledger, clock, "log", 0.125)
  with pytest.raises(KeyError), ledger.phase("eval"):
    clock.now += 5
    raise KeyError
  clock.now += 0.25
  found = ledger.rows()
  expected = rows(other=0.75, init=3, restore=3, compile=7, input=4, step=9, log=0.5, eval=5)
  assert found == expected
  assert sum(found.values()) == clock.now


def test_phases_are_told_and_checked():
  told = []
  ledger = Ledger(on_phase=told.append)
  with ledger.phase("eval"), ledger.phase("input"):
    pass
  assert told == ["eval", "input", "eval", "other"]
  with pytest.raises(ValueError, match=r"phase 'evel' is not known; allowed: init, .*, eval"):
    spend(ledger, Clock(), "evel", 1)


class Run:
  """Processes of a run of one-second steps: records every second step, checkpoints every fourth."""

  def __init__(self):
    self.clock, self.records = Clock(1e9), []

  def process(self, first, last, killed_after):
    """A process that goes on after a checkpoint, and is killed some seconds after `last`."""
    start = first - 1 or None
    ledger = Ledger(clock=self.clock, wall=self.clock)
    ledger.resume(carried(self.records, start, self.clock.now))
    self.records = [r for r in self.records if start is not None and r["step"] <= start]
    spend(ledger, self.clock, "compile", 10)
    for step in range(first, last + 1):
      spend(ledger, self.clock, "input", 0.25)
      spend(ledger, self.clock, "device", 1)
      if step % 2 == 0:
        self.log(step, ledger)
      if step % 4 == 0:
        spend(ledger, self.clock, "eval", 3)
        self.log(step, ledger)
        spend(ledger, self.clock, "save", 0.5)
    self.clock.now += killed_after
    return ledger

  def log(self, step, ledger):
    line = json.dumps({"step": step, "train/loss": 1.0, **ledger.record()})
    self.records += [json.loads(line), {"step": step, "validation/loss": 2.0}]


def test_steps_repeated_after_a_restart_are_lost():
  run = Run()
  run.process(1, 7, killed_after=100)  # checkpoint of step 4; record of step 6; step 7 has none
  found = run.process(5, 9, killed_after=0).rows()
  expected = rows(
    compile=20,
    step=4 + 5,
    input=1 + 1.25,
    eval=2 * 3,
    save=2 * 0.5,
    lost=2 * 1.25,  # steps 5 and 6
    down=1.25 + 100,  # step 7, which no record knows, is in the time until the next process
  )
  assert found == pytest.approx(expected)
  assert sum(found.values()) == pytest.approx(run.clock.now - 1e9)


def test_a_checkpoint_that_was_bad_loses_more_and_nothing_twice():
  run = Run()
  run.process(1, 10, killed_after=0)  # 9 and 10 are lost
  run.process(9, 10, killed_after=0)
  found = run.process(5, 12, killed_after=0).rows()  # that of step 8 was bad
  done = {"step": 12, "input": 3, "eval": 9}
  assert {key: found[key] for key in done} == done
  assert found["lost"] == 2 * 1.25 + (4 * 1.25 + 3) + 2 * 1.25
  assert sum(found.values()) == pytest.approx(run.clock.now - 1e9)


def test_a_run_without_checkpoint_starts_over():
  run = Run()
  run.process(1, 2, killed_after=0)
  found = run.process(1, 2, killed_after=0).rows()
  assert (found["step"], found["lost"], found["compile"]) == (2, 2.5, 20)
  assert carried([], None, 0.0) == {}
  assert carried([{"step": 1, "train/loss": 1.0}], 1, 0.0) == {}


def test_costs_less_than_a_hundredth_of_a_short_step(tmp_path):
  ledger = Ledger(on_phase=Watchdog(600.0, tmp_path / "stacks.txt").beat)
  step_time = StepTime(ledger)

  def account():
    for name in ("input", "dispatch", "device", "log"):
      with ledger.phase(name):
        pass
    step_time.add()
    step_time.read()
    ledger.record()

  # A step of configs/tiny.py takes some tenths of a second on two cores.
  assert min(timeit.repeat(account, number=100, repeat=5)) / 100 < 0.01 * 0.05


def test_table_names_what_took_time():
  clock = Clock()
  ledger = Ledger(clock=clock)
  ledger.resume({"lost": 25.0})
  spend(ledger, clock, "device", 75.0)
  console = Console(width=100)
  with console.capture() as capture:
    console.print(ledger.table())
  lines = [" ".join(line.split()) for line in capture.get().splitlines()]
  assert "training steps 75.0 75.0%" in lines
  assert "steps that were repeated after a restart 25.0 25.0%" in lines
  assert "total 100.0 100.0%" in lines
  assert not any("evaluation" in line for line in lines)


def test_seconds_in_the_background_are_told_and_no_row_has_them():
  ledger = Ledger(clock=Clock())
  ledger.resume(carried([{"step": 1, "goodput/unix_time": 0.0, "goodput/opened": 2.5}], 1, 0.0))
  ledger.beside(lambda: 1.25)
  ledger.beside(lambda: 0.25)  # of another run in the same process
  assert ledger.record()["goodput/opened"] == 4.0 and sum(ledger.rows().values()) == 0
  assert ledger.table().caption == "opening saved checkpoints, in the background: 4.0 s"


def test_step_time_is_the_mean_since_the_last_reading():
  clock = Clock()
  ledger = Ledger(clock=clock)
  spend(ledger, clock, "input", 100)
  step_time = StepTime(ledger)
  for seconds in (1.0, 3.0):
    spend(ledger, clock, "input", seconds)
    spend(ledger, clock, "dispatch", 0.5)
    spend(ledger, clock, "device", 5.5)
    step_time.add()
  spend(ledger, clock, "eval", 50)
  found = step_time.read()
  expected = {"time/input": 2.0, "time/dispatch": 0.5, "time/device": 5.5}
  assert found == {**expected, "time/input_share": 0.25}
  assert step_time.read() == {**dict.fromkeys(found, 0.0)}
