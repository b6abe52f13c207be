"""What is saved comes back bit by bit, laid out as it was."""

import dataclasses
import errno
import itertools
import json
import shutil
import time
from unittest import mock

import jax
import numpy as np
import pytest

from configs import tiny
from resjax.base import manifest
from resjax.base.processes import agreement
from resjax.models.model_def import ModelDef
from resjax.train import experiment, optim
from resjax.train.checkpoint.manager import Checkpoints
from resjax.train.checkpoint.reader import newest, saved_steps
from resjax.train.state import abstract_state, init_state
from tests.helpers import layouts
from tests.helpers.checkpoints import (
  abstract,
  assert_restores,
  fill,
  numbers,
  opened,
  settings,
  small_state,
)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_comes_back(tmp_path, name):
  c = tiny.get_config()
  c.optim.name = name
  c.model.update(num_layers=2, d_model=32, mlp_dim=64)
  run = experiment.build(c).with_vocab_size(64)
  model = ModelDef(run.decoder, layouts.layout(data=2, fsdp=2, tensor=2))
  optimizer = optim.make_optimizer(run.optim, 300)
  state = init_state(model, optimizer, seed=0)
  # Moments of a fresh state are zero: any would do.
  state = dataclasses.replace(state, opt_state=jax.tree.map(lambda x: x + 1, state.opt_state))
  batches = numbers(9)
  seen = [next(batches) for _ in range(3)]
  with Checkpoints(tmp_path, settings(), batch_size=8) as checkpoints:
    checkpoints.save(7, state, batches)
  with Checkpoints(tmp_path, settings(), batch_size=8) as checkpoints:
    assert checkpoints.latest == 7
    again = numbers(9)
    step, restored = checkpoints.restore(abstract_state(model, optimizer), again)
  assert step == 7
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for got, want in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
    np.testing.assert_array_equal(got, want)
    assert got.sharding.is_equivalent_to(want.sharding, want.ndim)
  assert [*seen, *again] == list(range(9))


@pytest.mark.parametrize(
  ("changes", "kept"),
  [
    ({"keep_last": 1}, [9]),
    pytest.param({"keep_last": 3}, [7, 8, 9], marks=pytest.mark.release),
    pytest.param({"keep_last": 2, "keep_every": 4}, [4, 8, 9], marks=pytest.mark.release),
    ({"keep_last": 1, "keep_every": 3}, [3, 6, 9]),
  ],
)
def test_what_is_kept(tmp_path, changes, kept):
  fill(tmp_path, *range(1, 6), **changes)
  fill(tmp_path, *range(6, 10), **changes)
  assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, kept))
  with opened(tmp_path, **changes) as checkpoints:
    assert_restores(checkpoints, 9)


def test_a_step_is_saved_once(tmp_path):
  fill(tmp_path, 5)
  before = (tmp_path / "5" / "manifest.json").stat().st_mtime_ns
  with opened(tmp_path) as checkpoints:
    assert_restores(checkpoints, 5)
    for step in (5, 6, 6):
      checkpoints.save(step, small_state(step), numbers())
  assert saved_steps(tmp_path) == [5, 6]
  assert (tmp_path / "5" / "manifest.json").stat().st_mtime_ns == before


def test_a_place_in_the_data_is_plain_json_and_fits_any_number_of_processes(tmp_path):
  fill(tmp_path, 5)
  place = json.loads((tmp_path / "5" / "data" / "metadata").read_text())
  assert place == {"batch_size": 8, "iterator": {"next_index": 5}}
  assert [path.name for path in (tmp_path / "5" / "data").glob("*process*")] == []


def test_the_newest_checkpoint_has_the_highest_step(tmp_path):
  assert newest(tmp_path) is None
  for step in (9, 100, 12):
    (tmp_path / str(step)).mkdir()
  assert saved_steps(tmp_path) == [9, 12, 100] and newest(tmp_path).name == "100"


@pytest.mark.parametrize("rows", [4, 16])
def test_another_batch_size_is_refused(tmp_path, rows):
  fill(tmp_path, 5)
  with Checkpoints(tmp_path, settings(), batch_size=rows) as checkpoints:
    words = rf"checkpoint 5 .* batches of 8 rows; config.train.batch_size={rows} would read other"
    with pytest.raises(ValueError, match=words):
      checkpoints.restore(abstract(small_state(5)), numbers())


def test_another_model_is_refused_and_nothing_called_damaged(tmp_path):
  fill(tmp_path, 5)
  with opened(tmp_path) as checkpoints:
    words = (
      r"params/layers/w is float32\[64, 64\] there and float32\[128, 64\] here; .*config.model"
    )
    with pytest.raises(ValueError, match=words):
      checkpoints.restore(abstract(small_state(5, size=128)), numbers())
    assert checkpoints.latest == 5


def test_what_a_killed_process_left_is_no_checkpoint_and_is_removed(tmp_path):
  fill(tmp_path, 5)
  left = tmp_path / "6.orbax-checkpoint-tmp"
  shutil.copytree(tmp_path / "5", left)
  assert newest(tmp_path).name == "5" and left.exists()
  with opened(tmp_path) as checkpoints:
    assert checkpoints.latest == 5 and not left.exists()
    assert_restores(checkpoints, 5)
    checkpoints.save(6, small_state(6), numbers())
  assert saved_steps(tmp_path) == [5, 6]


def test_another_process_that_dies_in_a_save_is_no_full_disk(tmp_path, monkeypatch):
  fill(tmp_path, 5)
  gone = RuntimeError("Gloo AllGather failed: Connection reset by peer")
  monkeypatch.setattr(agreement, "active", lambda: True)
  monkeypatch.setattr(manifest, "write", mock.Mock(side_effect=gone))
  with opened(tmp_path) as checkpoints:
    checkpoints.save(6, small_state(6), numbers())
    with pytest.raises(RuntimeError, match=r"^Gloo AllGather failed: Connection reset by peer$"):
      checkpoints.wait()


def test_a_failed_save_is_no_checkpoint_and_the_next_one_works(tmp_path, monkeypatch):
  fill(tmp_path, 5)
  with opened(tmp_path) as checkpoints:
    with monkeypatch.context() as broken:
      full = OSError(errno.ENOSPC, "No space left on device")
      broken.setattr(manifest, "write", mock.Mock(side_effect=full))
      checkpoints.save(6, small_state(6), numbers())
      words = "checkpoint of step 6 was not written .*No space left on device.*; that of step 5 is"
      with pytest.raises(ValueError, match=words):
        checkpoints.wait()
    assert checkpoints.latest == 5
    assert_restores(checkpoints, 5)
    checkpoints.save(6, small_state(6), numbers())
  assert saved_steps(tmp_path) == [5, 6]


def test_a_folder_that_is_gone_is_one_line_and_noticed_while_training(tmp_path):
  folder = tmp_path / "checkpoints"
  fill(folder, 5)
  checkpoints = opened(folder)
  folder.rename(tmp_path / "elsewhere")
  folder.write_text("not a folder")
  with pytest.raises(ValueError, match=r"step 6 was not written .*; there is none") as caught:
    checkpoints.save(6, small_state(6), numbers())
    for _ in range(1000):
      checkpoints.due(7)
      time.sleep(0.01)
  assert "\n" not in str(caught.value)
  checkpoints.wait()
  assert saved_steps(tmp_path / "elsewhere") == [5]


@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_that_jumps_while_a_checkpoint_is_written(tmp_path, monkeypatch, days):
  now, looks = time.time, itertools.count()
  monkeypatch.setattr(time, "time", lambda: now() + 86_400 * days * next(looks))
  fill(tmp_path, 5)
  assert saved_steps(tmp_path) == [5]


def test_a_folder_that_was_moved_is_not_made_again(tmp_path):
  folder = tmp_path / "run" / "checkpoints"
  with opened(folder) as checkpoints:
    checkpoints.save(5, small_state(5), numbers())
    checkpoints.wait()
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"run/checkpoints.*moved or deleted.*bring back"):
      checkpoints.save(6, small_state(6), numbers())
  assert not (tmp_path / "run").exists() and saved_steps(tmp_path / "moved" / "checkpoints") == [5]
