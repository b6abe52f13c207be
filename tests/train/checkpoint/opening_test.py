"""What was written and cannot be opened is said, moved aside, and takes the place of nothing."""

import os
import pathlib
import time

import pytest

from resjax.base import manifest
from resjax.train.checkpoint import opening
from resjax.train.checkpoint.manager import Unreadable
from resjax.train.checkpoint.place import absolute
from resjax.train.checkpoint.reader import saved_steps
from tests.helpers.checkpoints import assert_restores, fill, numbers, opened, small_state

# Everything without which no reader finds all arrays.
PARTS = (
  "arrays/metadata", "data/metadata", "params/_METADATA", "params/manifest.ocdbt", "params/d/*",
  "optimizer/manifest.ocdbt", "optimizer/d/*", "params/ocdbt.process_0/d/*",
)  # fmt: skip


def at(step: int):
  batches = numbers()
  batches.set_state({"next_index": step})
  return batches


def spoil(checkpoint: pathlib.Path, part: str, kind: str) -> None:
  path = max(checkpoint.glob(part), key=lambda path: path.stat().st_size)
  content = path.read_bytes()
  if kind == "gone":
    path.unlink()
  else:
    path.write_bytes(content[: len(content) // 2])


@pytest.fixture
def spoiled(monkeypatch):
  """Lets a part of a checkpoint be lost before its manifest is completed, or after."""

  def between(step, part, kind, *, listed):
    write = manifest.write

    def spoiling(folder, facts, *, root=True):
      new = root and folder.name == str(step)
      if new and not listed:
        (folder / manifest.FILE_NAME).unlink()
        spoil(pathlib.Path(folder), part, kind)
      write(folder, facts, root=root)
      if new and listed:
        spoil(pathlib.Path(folder), part, kind)

    monkeypatch.setattr(manifest, "write", spoiling)

  return between


@pytest.mark.parametrize("kind", ["gone", "half"])
def test_no_part_is_missed(tmp_path, kind):
  fill(tmp_path, 5)
  checkpoint = absolute(tmp_path / "5")
  opening.check(checkpoint)
  for part in PARTS:
    path = max((tmp_path / "5").glob(part), key=lambda path: path.stat().st_size)
    content = path.read_bytes()
    spoil(tmp_path / "5", part, kind)
    (tmp_path / "5" / manifest.FILE_NAME).unlink()
    manifest.write(checkpoint, {})  # which takes what is there for what was written
    with pytest.raises((ValueError, OSError)):
      opening.check(checkpoint)
    path.write_bytes(content)
  (tmp_path / "5" / manifest.FILE_NAME).unlink()
  manifest.write(checkpoint, {})
  opening.check(checkpoint)
  (tmp_path / "5").rename(tmp_path / "5.orbax-checkpoint-tmp")
  with pytest.raises(manifest.Damaged, match="not among the finished ones"):
    opening.check(absolute(tmp_path / "5.orbax-checkpoint-tmp"))


@pytest.mark.parametrize("listed", [False, True])
def test_a_failed_save_is_said_and_the_run_goes_on(tmp_path, spoiled, listed):
  fill(tmp_path, 5, keep_last=1)
  spoiled(6, "params/ocdbt.process_0/d/*", "gone", listed=listed)
  with opened(tmp_path, keep_last=1) as checkpoints:
    for step in (6, 7):
      checkpoints.save(step, small_state(step), at(step))
      if step == 6:
        deadline = time.monotonic() + 30
        while not checkpoints.said and time.monotonic() < deadline:
          checkpoints.due(6)
        assert saved_steps(tmp_path) == [5] == [checkpoints.latest]
    (line,) = checkpoints.said
  assert line.startswith("the checkpoint of step 6 was written and cannot be read (")
  assert line.endswith(
    f"); what is left of it is now {tmp_path}/unreadable-6; that of step 5 is the last one; "
    "the run goes on"
  )
  assert sorted(os.listdir(tmp_path)) == ["7", "unreadable-6"]
  with opened(tmp_path, keep_last=1) as checkpoints:
    assert_restores(checkpoints, 7)


def test_the_last_one_is_an_error_and_can_be_saved_again(tmp_path, spoiled, monkeypatch):
  (tmp_path / "unreadable-2-kept").mkdir()  # a user's own name, which is in nobody's place
  with opened(tmp_path) as checkpoints:
    for step in (3, 4):
      spoiled(step, "optimizer/_METADATA", "half", listed=True)
      checkpoints.save(step, small_state(step), at(step))
      with pytest.raises(Unreadable, match=f"step {step} was written and .*; there is none$"):
        checkpoints.wait()
    assert sorted(os.listdir(tmp_path)) == ["unreadable-2-kept", "unreadable-4"]
    assert checkpoints.latest is None
    monkeypatch.undo()
    checkpoints.save(4, small_state(4), at(4))
    checkpoints.wait()
    assert checkpoints.latest == 4 and checkpoints.opening_seconds > 0
  with opened(tmp_path) as checkpoints:
    assert_restores(checkpoints, 4)
