"""The parts of a run: what is kept of them, told of them, and shown of them."""

import dataclasses

from configs import tiny
from resjax.train import run_history
from resjax.train.runs import history
from resjax.train.runs.environment import Environment
from resjax.train.runs.history import Part

HERE = Environment({"jax": "0.10.2"}, "3.11", "c0de", ["cpu", "cpu"], ["train"])


def part(first_step, where=HERE, **settings):
  return Part(first_step, {"optim.learning_rate": 0.1, "optim.b1": 0.9} | settings, where)


def at_rate(rate, first_step=1):
  return part(first_step, **{"optim.learning_rate": rate})


def test_a_part_begins_behind_the_checkpoint_and_takes_the_place_of_what_came_after_it():
  first, second = at_rate(0.1), at_rate(0.2, 11)
  parts = history.continued([first], second)
  assert parts == [first, second]
  assert history.continued(parts, at_rate(0.3, 16)) == [first, second, at_rate(0.3, 16)]
  # The steps from 11 on, or all of them, were rolled back.
  assert history.continued(parts, at_rate(0.3, 11)) == [first, at_rate(0.3, 11)]
  assert history.continued(parts, at_rate(0.3, 6)) == [first, at_rate(0.3, 6)]
  assert history.continued(parts, at_rate(0.3, 1)) == [at_rate(0.3, 1)]


def test_a_part_goes_on_where_nothing_changed():
  parts = [at_rate(0.1), at_rate(0.2, 11)]
  assert history.continued(parts, at_rate(0.2, 21)) == parts
  assert history.continued(parts, at_rate(0.1, 11)) == [at_rate(0.1)]  # back to what held before
  newer = dataclasses.replace(HERE, git="f00d")
  assert history.continued(parts, part(21, newer))[-1] == part(21, newer)
  assert [history.at(parts, step).first_step for step in (1, 10, 11, 99)] == [1, 1, 11, 11]
  assert history.at([], 1) is None


def test_a_record_has_what_differs_and_gives_back_all():
  config = {"workdir": "runs/a", "seed": 0, "optim": {"learning_rate": 0.3, "b1": 0.9}}
  config |= {"model": {"residual": {"name": "standard"}}, "sharding": {"name": "fsdp_tp"}}
  last = history.settings(config)
  assert "workdir" not in last
  parts = [Part(1, last | {"optim.learning_rate": 0.1}, HERE), Part(5, last, HERE)]
  parts[0].settings["health.gone"] = None  # a setting of an earlier version
  short = history.short(parts)
  assert [p.settings for p in short] == [
    {"optim.learning_rate": 0.1, "health.gone": None},
    {"optim.learning_rate": 0.3},
  ]
  assert history.whole(short, config) == parts


def test_options_that_are_not_used_are_no_settings():
  found = history.settings(tiny.get_config().to_dict())
  assert "model.residual.block_attn_res.layers_per_block" in found
  assert "model.residual.name" in found and "sharding.name" in found
  assert not [name for name in found if name.startswith("model.residual.mhc.")]


def test_changes_in_words():
  old = part(1, **{"sharding.name": "fsdp_tp", "sharding.fsdp_tp.mlp": "tensor"})
  there = dataclasses.replace(
    HERE,
    packages={"jax": "0.11.0"},
    devices=["cpu"],
    command=["other"],
    variables={"XLA_FLAGS": "-x"},
  )
  new = part(8, there, **{"sharding.name": "dp", "optim.b1": 0.8, "sharding.dp.mlp": None})
  assert [str(change) for change in history.changes(old, new)] == [
    "config.optim.b1 was 0.9 and is 0.8",
    "config.sharding.name was 'fsdp_tp' and is 'dp'",
    "jax was 0.10.2 and is 0.11.0",
    "devices was 2 x cpu and is 1 x cpu",
    "XLA_FLAGS was None and is -x",
  ]


def test_what_an_earlier_record_does_not_know_is_no_change():
  old = part(1, Environment({"jax": "0.9", "tokenizers": None}))
  packages = HERE.packages | {"tokenizers": "0.2", "flax": "0.12"}
  new = part(8, dataclasses.replace(HERE, packages=packages, git=None))
  assert [str(change) for change in history.changes(old, new)] == [
    "jax was 0.9 and is 0.10.2",
    "tokenizers was None and is 0.2",
  ]


def test_marks_are_where_more_than_the_command_changed():
  other = dataclasses.replace(HERE, command=["resjax", "train"])
  parts = [at_rate(0.1), part(5, other), at_rate(0.2, 9)]
  assert history.marks(parts) == [(8.5, "3")]
  (text,) = run_history.section(parts)
  for words in (
    "5 to 8",
    "command: resjax train",
    "optim.learning_rate was 0.1 and is 0.2",
    "9 to end",
  ):
    assert words in text
  assert not list(run_history.section(parts[:1]))
