"""Checkpoints in an object store: whole or not at all, retention, damage, leftovers."""

import dataclasses
import json

import pytest

from resjax.base import locations
from resjax.train.checkpoint.reader import newest, saved_steps
from resjax.train.runs import workdir
from tests.helpers.checkpoints import assert_restores, fill, numbers, opened, small_state


@pytest.fixture
def folder(bucket):
  return locations.path(f"gs://{bucket}/run/checkpoints")


def steps_there(gcs, folder):
  return {name.split("/")[2] for name in gcs.names(f"{folder.parts[2]}/run/checkpoints/")}


def test_the_last_ones_stay_and_the_newest_comes_back(gcs, folder):
  fill(folder, 5, 10, 20, keep_last=2)
  assert steps_there(gcs, folder) == {"10", "20"}
  assert saved_steps(folder) == [10, 20] and newest(folder) == folder / "20"
  with opened(folder) as checkpoints:
    assert_restores(checkpoints, 20)
    assert not checkpoints.said


def test_what_a_killed_process_left_does_not_count_and_is_removed(gcs, folder):
  fill(folder, 10, 20)
  # Orbax writes this object last: without it a checkpoint is one that was never finished.
  del gcs.objects[folder.parts[2], "run/checkpoints/20/commit_success.txt"]
  assert saved_steps(folder) == [10]
  with opened(folder) as checkpoints:
    assert_restores(checkpoints, 10)
    # Orbax removes in the background, and waits for that before the next save.
    checkpoints.save(30, small_state(30), numbers())
  assert steps_there(gcs, folder) == {"10", "30"}


def test_a_damaged_one_is_set_aside(gcs, folder):
  fill(folder, 10, 20)
  bucket = folder.parts[2]
  name = max(
    gcs.names(f"{bucket}/run/checkpoints/20/params/"),
    key=lambda name: len(gcs.objects[bucket, name].data),
  )
  found = gcs.objects[bucket, name]
  flipped = bytes([*found.data[:100], found.data[100] ^ 1, *found.data[101:]])
  gcs.objects[bucket, name] = dataclasses.replace(found, data=flipped)
  with opened(folder) as checkpoints:
    assert_restores(checkpoints, 10)
    (line,) = checkpoints.said
  assert "checkpoint 20 is damaged" in line and f"{folder}/damaged-20" in line
  assert steps_there(gcs, folder) == {"10", "damaged-20"}
  listed = json.loads((folder / "damaged-20" / "manifest.json").read_text())["files"]
  there = gcs.names(f"{bucket}/run/checkpoints/damaged-20/")
  assert {name.split("damaged-20/")[1] for name in there} >= set(listed)


def test_a_bucket_that_cannot_be_written_is_refused(gcs, bucket):
  workdir.create(f"gs://{bucket}/run")
  assert gcs.names(f"{bucket}/") == []
  with pytest.raises(ValueError, match=r"cannot write to gs://missing/run \(.*check that"):
    workdir.create("gs://missing/run")


def test_the_list_of_files_reads_no_array_back(gcs, folder):
  fill(folder, 10)
  bucket = folder.parts[2]
  # TensorStore reads what it merges, from another address than gcsfs does.
  read = [path for _, path in gcs.requests if path.startswith(f"/download/storage/v1/b/{bucket}/")]
  listed = json.loads((folder / "10" / "manifest.json").read_text())["files"]
  data = [name for name in listed if "/d/" in name]
  assert data and not [path for path in read if "%2Fd%2F" in path]
  size, digest = listed[data[0]]
  found = gcs.resource((bucket, f"run/checkpoints/10/{data[0]}"))
  assert (size, digest) == (int(found["size"]), f"crc32c {found['crc32c']}")
