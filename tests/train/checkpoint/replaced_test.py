"""Whoever reads a run beside its trainer gets a checkpoint, or hears that it was replaced."""

import errno
import os
import shutil
import threading
from unittest import mock

import numpy as np
import pytest

from resjax.base import locations, manifest
from resjax.train.checkpoint import reader
from resjax.train.checkpoint.reader import Replaced, restore_params
from resjax.train.runs import restore
from tests.helpers.checkpoints import abstract, fill, numbers, opened, small_state

WANTED = abstract(small_state(1)).params


def scale(saved):
  return saved.step, np.asarray(restore_params(saved.checkpoint, WANTED)["scale"])


def test_the_next_newest_is_read(tmp_path, monkeypatch):
  folder = tmp_path / "checkpoints"
  fill(folder, 1, 2)
  shutil.move(folder / "2", tmp_path / "2")
  check = manifest.check

  def replacing(place, *args, **options):
    if place.name == "1" and not (folder / "2").exists():
      os.unlink(place / "params" / "manifest.ocdbt")  # deleting has begun
      shutil.move(tmp_path / "2", folder / "2")
      threading.Timer(0.3, shutil.rmtree, (place,)).start()
    return check(place, *args, **options)

  monkeypatch.setattr(manifest, "check", replacing)
  step, found = restore.read_newest(str(tmp_path), "--checkpoint", scale)
  assert step == 2
  np.testing.assert_array_equal(found, small_state(2).params["scale"])


def test_a_file_may_get_its_name_while_the_folder_is_listed(tmp_path, monkeypatch):
  fill(tmp_path, 1)
  open_regular = locations.open_regular
  partial = tmp_path / "1" / ".manifest.json.partial"
  partial.touch()

  def renaming(place):
    if place.name == partial.name:
      partial.unlink()
    return open_regular(place)

  monkeypatch.setattr(locations, "open_regular", renaming)
  found = restore_params(tmp_path / "1", WANTED)
  np.testing.assert_array_equal(found["scale"], small_state(1).params["scale"])


def test_a_named_one_was_replaced(tmp_path):
  folder = tmp_path / "checkpoints"
  fill(folder, 1, 2)

  def read(saved):
    shutil.rmtree(saved.checkpoint)
    return scale(saved)

  with pytest.raises(Replaced, match=r"checkpoints/1 was deleted while it was read.*keep_last"):
    restore.read_newest(str(folder / "1"), "--checkpoint", read)


def test_one_may_go_while_the_others_are_listed(tmp_path, monkeypatch):
  fill(tmp_path, 1, 2)
  os.unlink(tmp_path / "1" / "params" / "manifest.ocdbt")
  saved_steps = reader.saved_steps

  def listed(folder):
    shutil.rmtree(tmp_path / "1", ignore_errors=True)
    return saved_steps(folder)

  monkeypatch.setattr(reader, "saved_steps", listed)
  with pytest.raises(Replaced, match="/1 was deleted while it was read"):
    restore_params(tmp_path / "1", WANTED)


def test_one_that_stays_is_damaged(tmp_path, monkeypatch):
  fill(tmp_path, 1, 2)
  monkeypatch.setattr(reader, "_PATIENCE", 0.1)
  for step in ("1", "2"):
    os.unlink(tmp_path / step / "params" / "manifest.ocdbt")
    with pytest.raises(ValueError, match=rf"{step} is damaged \(params/manifest.ocdbt is missing"):
      restore_params(tmp_path / step, WANTED)


@pytest.mark.release
def test_many_readers_beside_a_trainer(tmp_path):
  """With keep_last=1 a third of them met a checkpoint that was being deleted."""
  folder, ends = tmp_path / "checkpoints", threading.Event()
  fill(folder, 1, keep_last=1)

  def train():
    with opened(folder, keep_last=1) as checkpoints:
      for step in range(2, 40):
        checkpoints.save(step, small_state(step), numbers())
    ends.set()

  trainer = threading.Thread(target=train)
  trainer.start()
  seen = []
  while not ends.is_set():
    step, found = restore.read_newest(str(tmp_path), "--checkpoint", scale)
    np.testing.assert_array_equal(found, small_state(step).params["scale"])
    seen.append(step)
  trainer.join()
  assert seen == sorted(seen) and len(set(seen)) > 5


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE])
def test_what_is_out_of_reach_is_not_damaged_and_stays(tmp_path, monkeypatch, number):
  fill(tmp_path, 1, 2)
  open_regular = locations.open_regular

  def failing(place):
    if place.name == "_METADATA":
      raise OSError(number, os.strerror(number), str(place))
    return open_regular(place)

  monkeypatch.setattr(locations, "open_regular", failing)
  with pytest.raises(OSError, match=os.strerror(number)) as caught:
    restore_params(tmp_path / "2", WANTED)
  assert caught.value.filename.endswith("2/params/_METADATA") and locations.way_out(caught.value)
  with opened(tmp_path) as checkpoints, pytest.raises(OSError, match=os.strerror(number)):
    checkpoints.restore(abstract(small_state(2)), mock.Mock())
  assert sorted(os.listdir(tmp_path)) == ["1", "2"]
