"""Checkpoints are where the operating system says, whatever the path is and whoever owns it."""

import errno
import fcntl
import os
import pwd
from unittest import mock

import numpy as np
import pytest

from resjax.base.library_paths import LiteralPath, LocalPath
from resjax.train.checkpoint.place import absolute
from resjax.train.checkpoint.reader import newest, parameter_shapes, restore_params, saved_steps
from resjax.train.runs import workdir
from tests.helpers.checkpoints import abstract, assert_restores, fill, numbers, opened, small_state

# Each of them was read as a pattern, or as another folder, by one of the libraries.
ODD = ("a[b]c", "[!x]/y[0-9]/z", "a**b*?", "link/../run", "-{x,y} #%41~ é\n'\".")


@pytest.mark.parametrize("name", ODD)
def test_odd_paths(tmp_path, name):
  (tmp_path / "far" / "away").mkdir(parents=True)
  (tmp_path / "link").symlink_to("far/away")
  folder = tmp_path / name
  fill(folder, 1, 2, keep_last=2)
  with opened(folder, keep_last=2) as checkpoints:
    assert_restores(checkpoints, 2)
    checkpoints.save(3, small_state(3), numbers())
  assert saved_steps(folder) == [2, 3] and {"2", "3"} == set(os.listdir(folder))
  wanted = small_state(3).params
  found = restore_params(newest(folder), abstract(small_state(3)).params)
  np.testing.assert_array_equal(found["scale"], wanted["scale"])
  assert parameter_shapes(newest(folder))["layers/w"] == (64, 64)


@pytest.mark.parametrize("name", ["back\\slash", "no-utf-8-\udcff"])
def test_paths_without_a_name_for_the_arrays_are_refused_before_a_step(tmp_path, name):
  with pytest.raises(ValueError, match=r"cannot be kept in .*UTF-8, is allowed; choose") as caught:
    workdir.create(str(tmp_path / name / "run"))
  assert "\n" not in str(caught.value) and os.listdir(tmp_path) == []


def test_only_addresses_are_object_stores():
  assert str(absolute("/gs/bucket/run")) == "/gs/bucket/run"
  assert not LocalPath("/gs/no/such").exists()
  assert (
    str(absolute("gs://bucket/run")) == str(LiteralPath("gs://bucket/run")) == "gs://bucket/run"
  )


def test_owners_that_nobody_knows(tmp_path, monkeypatch):
  """As on a disk of another machine, or in a container that is run under a number."""
  unknown = mock.Mock(side_effect=KeyError("getpwuid(): uid not found: 54321"))
  monkeypatch.setattr(pwd, "getpwuid", unknown)
  fill(tmp_path / "run", 1, 2)
  with opened(tmp_path / "run", strict=True) as checkpoints:
    assert_restores(checkpoints, 2)
  restore_params(newest(tmp_path / "run"), abstract(small_state(2)).params)
  unknown.assert_not_called()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_folder_that_cannot_be_locked_is_warned_of(tmp_path, monkeypatch, caplog, number):
  monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(number, os.strerror(number))))
  with workdir.lock(tmp_path):
    pass
  (record,) = caplog.records
  assert record.getMessage().startswith(f"{tmp_path} cannot be locked ([Errno {number}]")
