"""Plans: what a sweep file may ask, and when a plan counts as made before the runs."""

import dataclasses

import pytest

from resjax import combinators
from resjax.study import config_tree
from resjax.study.sweeps import plan as plans
from resjax.study.sweeps.runs import expand
from tests.study.sweeps import made

ARMS = ["standard", "gate"]
TUNING = {"settings": {"optim.learning_rate": (0.5, 1, 2)}, "steps": 2, "seed": 9}


def test_contrasts_are_written_out():
  asked = plans.questions({}, ["a", "b", "c"], seeds=(1, 2))
  assert (asked.baseline, asked.contrasts) == ("a", (("b", "a"), ("c", "a")))
  assert asked.seeds == (1, 2) and asked.key == "validation/bits_per_byte"
  asked = plans.questions({"baseline": "b", "seeds": (3,)}, ["a", "b", "c"], baseline="c")
  assert asked.contrasts == (("a", "c"), ("b", "c")) and asked.seeds == (3,)


@pytest.mark.parametrize(
  ("declared", "message"),
  [
    ([], r"PLAN is \[\]: a dict is allowed"),
    ({"margins": 1}, "PLAN: 'margins' is not a field; did you mean 'margin'?"),
    ({"margin": 0}, "PLAN: margin is 0: "),
    ({"better": "more"}, "PLAN: better is 'more': "),
    ({"baseline": "gat"}, "PLAN: there is no arm 'gat'; did you mean 'gate'"),
    ({"contrasts": [("gate", "none")]}, "PLAN: there is no arm 'none'"),
    ({"contrasts": [("gate", "gate")]}, "PLAN.contrasts compares 'gate' with itself"),
    ({"contrasts": [("gate",)]}, "PLAN: contrasts"),
    ({"seeds": (1, 1)}, "seeds 1, 1: each may be named once"),
    ({"seeds": (-1,)}, "PLAN: seeds"),
    ({"tuning": TUNING | {"step": 1}}, "PLAN.tuning: 'step' is not a field; did you mean 'steps'"),
    ({"tuning": TUNING, "seeds": (9,)}, "seed 9 is that of PLAN.tuning"),
    ({"tuning": TUNING | {"settings": {"optim.eps": (1, 2)}}}, "optim.eps has the factors"),
    ({"tuning": TUNING | {"settings": {"optim.eps": (2, 1, 3)}}}, "at least 3 that grow"),
  ],
)
def test_mistakes_in_a_plan_are_named(declared, message):
  with pytest.raises(ValueError, match=message) as caught:
    plans.questions(declared, ARMS)
  assert "\n" not in str(caught.value)


def test_an_unknown_baseline_of_the_command_line_is_named():
  with pytest.raises(ValueError, match="--baseline: there is no arm 'x'"):
    plans.questions({}, ARMS, baseline="x")


def test_a_plan_is_written_before_the_runs_and_read_with_types(tmp_path):
  plan = made.plan(tuning=TUNING)
  assert plans.settle(tmp_path, plan, begun=False) == plan == plans.read(tmp_path)
  assert plan.arms["gate"].overrides == {"model.residual.name": "gate"}
  assert plan.arms["gate"].steps == 4 and plan.arms["gate"].tokens == 4 * 8 * 256
  assert plan.arms["gate"].config != plan.arms["standard"].config == plan.arms["laurel"].config
  assert plan.date == "1970-01-01 00:16:40+00:00"
  path = tmp_path / plans.FILE_NAME
  path.write_text(path.read_text().replace('"steps": 4', '"steps": "x"', 1))
  with pytest.raises(ValueError, match=r"plan.json: arms.standard.steps is 'x'.*restore it"):
    plans.read(tmp_path)


def test_before_the_first_run_another_plan_takes_its_place(tmp_path):
  plans.settle(tmp_path, made.plan(), begun=False)
  again = plans.settle(tmp_path, made.plan(now=2000.0), begun=False)
  assert again.time == 1000.0  # It asks the same.
  other = plans.settle(tmp_path, made.plan(now=3000.0, margin=0.5), begun=False)
  assert other.time == 3000.0 and not other.changes and plans.read(tmp_path) == other


def test_changes_after_the_first_run_are_noted(tmp_path):
  plans.settle(tmp_path, made.plan(), begun=False)
  same = plans.settle(tmp_path, made.plan(now=2000.0, code="new"), begun=True)
  assert not same.changes and same.code == "c0de"
  changed = plans.settle(tmp_path, made.plan(now=3000.0, seeds=(0, 1, 2, 3)), begun=True)
  assert changed.time == 1000.0 and changed.seeds == (0, 1, 2, 3)
  assert [change.what for change in changed.changes] == ["seeds was [0, 1, 2] and is [0, 1, 2, 3]"]
  assert plans.exploratory(changed, {}) == [f"plan: {changed.changes[0].what}"]
  arms = {"standard": {}, "gate": {"model.residual.name": "highway"}, "x": {}}
  again = plans.settle(tmp_path, made.plan(arms=arms, seeds=(0, 1, 2, 3)), begun=True)
  assert len(again.changes) == 2 and plans.read(tmp_path) == again
  for words in ("the settings of gate were changed", "arm laurel was dropped", "arm x was added"):
    assert words in again.changes[1].what


def test_options_of_other_systems_change_no_plan(tmp_path):
  """The configs of earlier releases had those of all systems."""
  plans.settle(tmp_path, made.plan(), begun=False)
  config = made.config()
  for name in combinators.names(shipped=True):
    config_tree.add_system(config.model.residual, name)
  runs = expand(config, made.ARMS.items(), made.plan().seeds)
  earlier = plans.make(made.plan().questions, runs, "c0de", 9.0)
  assert plans.settle(tmp_path, earlier, begun=True) == made.plan()


def test_a_plan_after_the_first_run_is_exploratory(tmp_path):
  late = plans.settle(tmp_path, made.plan(), begun=True)
  assert plans.exploratory(late, {}) == ["plan: it was written after the first run"]
  plan = made.plan()
  assert plans.exploratory(plan, {"a": 1000.5}) == []
  assert "younger than the records of a" in plans.exploratory(plan, {"a": 999.0})[0]


def test_the_order_of_contrasts_is_no_change(tmp_path):
  pairs = (("gate", "standard"), ("rezero", "standard"))
  first = plans.settle(tmp_path, made.plan(contrasts=pairs), begun=False)
  assert plans.settle(tmp_path, made.plan(contrasts=pairs[::-1]), begun=True) == first


def test_tuned_values_stay_while_grid_and_arm_are_the_same(tmp_path):
  plan = plans.settle(tmp_path, made.plan(tuning=TUNING), begun=False)
  assert plans.settle(tmp_path, made.plan(tuning=TUNING), begun=True) == plan
  found = {"gate": {"optim.learning_rate": 1.0}, "standard": {"optim.learning_rate": 2.0}}
  plans.write(tmp_path, dataclasses.replace(plan, tuned=found))
  arms = made.ARMS | {"gate": {"model.residual.name": "highway"}}
  kept = plans.settle(tmp_path, made.plan(arms=arms, tuning=TUNING), begun=True)
  assert kept.tuned == {"standard": {"optim.learning_rate": 2.0}}
  other = TUNING | {"steps": 3}
  assert plans.settle(tmp_path, made.plan(arms=arms, tuning=other), begun=True).tuned == {}
