"""A poisoned state never takes the place of a good checkpoint, and the advice printed works."""

import dataclasses
import pathlib
import re
import signal
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.base.processes.signals import Interrupted
from resjax.base.records.metrics_log import read_metrics
from resjax.train.checkpoint import manager
from resjax.train.checkpoint.reader import saved_steps
from resjax.train.trainer import Trainer
from tests.helpers import trained
from tests.helpers.runs import write_text


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
  return write_text(tmp_path_factory.mktemp("poison"))


def settings(root, workdir, *, steps=10, rate=1e-3, **health):
  c = trained.settings(root, workdir, "standard", steps=steps, log_every=1, eval_rows=8)
  c.model.num_layers = 2
  c.optim.update(learning_rate=rate, schedule="constant")
  c.health.update(max_skipped=4, **health)
  c.checkpoint.update(every=2, keep_last=2)
  return c


def fails(config) -> str:
  with pytest.raises(ValueError, match="checkpoint") as caught:
    trained.run(config)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def contents(workdir: pathlib.Path) -> dict[str, bytes]:
  """The bytes of every file of the checkpoints."""
  folder = workdir / "checkpoints"
  return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_trains(config, start: int | None) -> str:
  """The run ends at its last step, every step from `start` on is taken, and its losses are low."""
  printed = trained.run(config)
  if start:
    assert f"resuming after step {start} of" in printed
  assert "is skipped" not in printed
  workdir = pathlib.Path(config.workdir)
  records = [r for r in read_metrics(workdir / "metrics.jsonl") if "train/loss" in r]
  losses = {r["step"]: r["train/loss"] for r in records}
  assert sorted(losses) == list(range(1, config.train.steps + 1))
  assert max(losses.values()) < 8 and np.isfinite(list(losses.values())).all()
  assert saved_steps(workdir / "checkpoints")[-1] == config.train.steps
  return printed


def at_step(wanted: int, change):
  """Changes the state of a run in memory before a step."""
  taken = Trainer._step

  def step(self, train_step):
    if int(self.state.step) == wanted - 1:
      self.state = change(self.state)
    return taken(self, train_step)

  return mock.patch.object(Trainer, "_step", step)


def poisoned(tree, value, *, one_copy):
  """Sets one element of the last shard of an array, on the last device or on all that have it."""
  leaves, structure = jax.tree.flatten(tree)
  place = next(n for n, leaf in enumerate(leaves) if leaf.ndim == 3)
  leaf = leaves[place]
  shards, last = [jnp.copy(shard.data) for shard in leaf.addressable_shards], len(jax.devices()) - 1
  for number, shard in enumerate(leaf.addressable_shards):
    alike = shard.index == leaf.addressable_shards[last].index
    if number == last or (alike and not one_copy):
      shards[number] = shards[number].at[(-1,) * leaf.ndim].set(value)
  leaves[place] = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)
  return jax.tree.unflatten(structure, leaves)


def bad_steps(*steps: int):
  """Makes some steps bad, and the parameters good again after each."""
  taken = Trainer._step

  def step(self, train_step):
    if int(self.state.step) + 1 not in steps:
      return taken(self, train_step)
    good = jax.tree.map(jnp.copy, self.state.params)
    self.state = nan_in_parameters(self.state)
    values = taken(self, train_step)
    self.state = dataclasses.replace(self.state, params=good)
    return values

  return mock.patch.object(Trainer, "_step", step)


def nan_in_parameters(state, *, one_copy=True):
  return dataclasses.replace(state, params=poisoned(state.params, np.nan, one_copy=one_copy))


def inf_in_moments(state, *, one_copy=True):
  moments = poisoned(state.opt_state, np.inf, one_copy=one_copy)
  return dataclasses.replace(state, opt_state=moments)


@pytest.mark.parametrize(
  "guarded", [True, pytest.param(False, marks=pytest.mark.release)], ids=["guarded", "unguarded"]
)
@pytest.mark.slow
def test_a_learning_rate_of_1e25_from_a_step_on(root, tmp_path, guarded):
  trained.run(settings(root, tmp_path, steps=4))
  before = contents(tmp_path)
  off = {} if guarded else {"skip_nonfinite": False, "max_update": 0.0}
  message = fails(settings(root, tmp_path, rate=1e25, **off))
  assert "lower config.optim.learning_rate" in message
  assert "the checkpoint of step 4 is the last one: the same command goes on from it" in message
  assert contents(tmp_path) == before and saved_steps(tmp_path / "checkpoints") == [2, 4]
  if guarded:
    assert re.search(r"update of norm (inf|\d\S*) of parameters of norm \d", message)
    assert "max_update" not in message
  assert_trains(settings(root, tmp_path), start=4)


@pytest.mark.slow
def test_a_learning_rate_of_1e25_from_the_start(root, tmp_path):
  message = fails(settings(root, tmp_path, rate=1e25))
  assert "no checkpoint is there, so the same command starts anew" in message
  assert_trains(settings(root, tmp_path), start=None)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (nan_in_parameters, "parameters that are not finite"),
    pytest.param(
      inf_in_moments, "moments of the optimizer that are not finite", marks=pytest.mark.release
    ),
  ],
)
@pytest.mark.slow
def test_memory_that_goes_wrong(root, tmp_path, change, words):
  config = settings(root, tmp_path)
  with at_step(6, change):
    message = fails(config)
  assert words in message and "the same command needs no change" in message
  assert "the checkpoint of step 4 is the last one" in message
  assert saved_steps(tmp_path / "checkpoints") == [2, 4]
  assert_trains(config, start=4)


@pytest.mark.parametrize(
  "change", [nan_in_parameters, pytest.param(inf_in_moments, marks=pytest.mark.release)]
)
@pytest.mark.slow
def test_a_checkpoint_that_an_older_program_saved(root, tmp_path, change):
  off = {"skip_nonfinite": False, "max_update": 0.0}
  change = partial(change, one_copy=False)
  with mock.patch.object(manager, "_not_finite", lambda items: []), at_step(6, change):
    config = settings(root, tmp_path, steps=6, **off)
    with mock.patch("resjax.train.guard.problem", lambda *args, **values: None):
      trained.run(config)
  assert saved_steps(tmp_path / "checkpoints") == [4, 6]
  config = settings(root, tmp_path)
  config.checkpoint.strict = True
  assert re.search(r"step 6: .*values that are not finite.*strict=False", fails(config))
  config.checkpoint.strict = False
  printed = assert_trains(config, start=4)
  assert re.search(r"checkpoint 6 is damaged \(\S+ .*values that are not finite\)", printed)
  assert "going on from checkpoint 4" in printed


@pytest.mark.slow
def test_the_next_step_taken_is_saved_after_a_skipped_one(root, tmp_path, capsys):
  config = settings(root, tmp_path, steps=8)
  with bad_steps(4, 5):
    trained.run(config)
  printed = capsys.readouterr().out
  assert printed.count("nothing is saved while steps are skipped, 1 in a row so far") == 1
  assert saved_steps(tmp_path / "checkpoints") == [6, 8]


@pytest.mark.slow
def test_the_last_step_is_skipped(root, tmp_path):
  config = settings(root, tmp_path, steps=4)
  with bad_steps(4):
    message = fails(config)
  assert message.startswith("step 4, the last one, is skipped: nothing is saved")
  assert saved_steps(tmp_path / "checkpoints") == [2]
  assert_trains(settings(root, tmp_path, steps=5), start=2)


@pytest.mark.slow
def test_a_signal_while_steps_are_skipped(root, tmp_path):
  config = settings(root, tmp_path, steps=8)

  def stop(state):
    signal.raise_signal(signal.SIGTERM)
    return state

  with bad_steps(4), at_step(4, stop), pytest.raises(Interrupted) as caught:
    trained.run(config)
  message = str(caught.value)
  assert message.startswith("stopped after step 4: nothing is saved while steps are skipped, 1 in")
  assert "the checkpoint of step 2 is the last one: the same command goes on from it" in message
  assert saved_steps(tmp_path / "checkpoints") == [2]
  assert_trains(config, start=2)
