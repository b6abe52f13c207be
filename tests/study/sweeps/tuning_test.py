"""Tuning against arms whose best learning rate is known."""

import dataclasses
import math

import pytest

from resjax.cli.commands import sweep_runs, sweep_tuning
from resjax.study.sweeps import plan as plans
from resjax.study.sweeps import tuning
from resjax.study.sweeps.plan import Tuning
from tests.study.sweeps import made

GRID = (0.5, 0.71, 1.0, 1.41, 2.0)
RATE, FACTOR = "optim.learning_rate", "optim.combinator_lr_multiplier"
BASE = 4e-3  # of configs/tiny.py


def _tune(best, settings=None, **more):
  """Runs whatever is missing; returns the state at the end, and the runs in rounds."""
  rule = Tuning(settings or {RATE: GRID}, steps=2, seed=7, **more)
  done, rounds = {}, []

  def score(run):
    return done.get(run.name)

  while True:
    state = tuning.state(made.config(), "gate", {"model.residual.name": "gate"}, rule, score)
    if not state.missing:
      return state, rounds
    rounds.append(state.missing)
    for run in state.missing:
      done[run.name] = best(run.config.optim)


def _bowl(rate):
  return lambda optim: (math.log(optim.learning_rate) - math.log(rate)) ** 2


def test_an_interior_best_needs_one_round_of_runs():
  state, (runs,) = _tune(_bowl(BASE), overrides={"train.eval_rows": 3})
  assert state.values == {RATE: BASE} and len(runs) == 5
  assert list(state.curves[RATE]) == pytest.approx([2e-3, 2.84e-3, 4e-3, 5.64e-3, 8e-3])
  run = runs[0]
  assert run.name == "gate/tuning/learning_rate_0.002" and run.config.workdir.endswith(run.name)
  assert (run.config.seed, run.config.train.steps, run.config.train.eval_rows) == (7, 2, 3)
  assert run.config.model.residual.name == "gate"


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_the_grid_moves_until_the_best_is_interior(factor):
  state, rounds = _tune(_bowl(factor * BASE))
  assert abs(math.log(state.values[RATE] / (factor * BASE))) < 0.18
  assert [len(runs) for runs in rounds] == [5, *[1] * (len(rounds) - 1)] and len(rounds) > 1
  rates = list(state.curves[RATE])
  assert state.values[RATE] not in (min(rates), max(rates))


def test_a_best_that_is_never_interior_is_an_error():
  with pytest.raises(
    ValueError, match=r"arm 'gate': the best optim.learning_rate of .* at the edge"
  ):
    _tune(lambda optim: -optim.learning_rate, most_moves=2)
  with pytest.raises(ValueError, match=r"arm 'gate': every optim.learning_rate of .* diverged"):
    _tune(lambda optim: math.inf)


def test_diverged_rates_are_the_worst():
  state, _ = _tune(lambda o: math.inf if o.learning_rate > 5e-3 else _bowl(BASE)(o))
  assert state.values == {RATE: BASE}


def test_settings_are_tuned_one_after_the_other_and_share_runs():
  settings = {RATE: GRID, FACTOR: (0.1, 1.0, 10.0)}

  def score(optim):
    return _bowl(1.41 * BASE)(optim) + abs(math.log(optim.combinator_lr_multiplier / 3))

  state, rounds = _tune(score, settings)
  assert state.values == {RATE: 5.64e-3, FACTOR: 1.0 if math.log(3) < math.log(10 / 3) else 10.0}
  assert [len(runs) for runs in rounds][:2] == [5, 2]  # the factor 1 was run with the rate
  names = [run.name for runs in rounds for run in runs]
  assert len(set(names)) == len(names)


def test_equal_scores_leave_the_setting_as_it_is():
  state, _ = _tune(lambda optim: 1.0)
  assert state.values == {RATE: BASE}


@pytest.mark.parametrize(("setting", "shown"), [("optim.no", "None"), ("optim.name", "'adamw'")])
def test_a_setting_without_a_number_is_named(setting, shown):
  with pytest.raises(ValueError, match=f"{setting} of arm 'gate' is {shown}: no number"):
    _tune(_bowl(1.0), {setting: GRID})


def test_arms_that_another_process_tuned_meanwhile_are_kept(tmp_path, monkeypatch):
  tuning_asked = {"settings": {RATE: (0.5, 1, 2)}, "steps": 2, "seed": 9}
  plan = plans.settle(tmp_path, made.plan(tuning=tuning_asked), begun=False)
  other = {"gate": {RATE: 0.25}}

  def elsewhere(runs):
    plans.write(tmp_path, dataclasses.replace(plan, tuned=other))
    return {}

  monkeypatch.setattr(sweep_runs, "check", elsewhere)
  state = tuning.State({RATE: 0.5}, (), {})
  monkeypatch.setattr(tuning, "state", lambda *given: state)
  sweep = sweep_tuning.Sweep(made.config(tmp_path), "file", made.ARMS, None, plan)
  assert sweep_tuning.tune(sweep, ["standard"], None) == []
  assert plans.read(tmp_path).tuned == sweep.plan.tuned == other | {"standard": {RATE: 0.5}}
