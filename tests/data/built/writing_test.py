"""Building where it cannot end: no source, no room, killed builds, others that build, no rights."""

import shutil
import subprocess
import sys
import threading
import time

import pytest

from resjax.data import built, dataset, storage
from tests.data.built.conftest import config_of, files, files_of_kinds
from tests.data.conftest import make_texts, write_folder
from tests.helpers.fakes import ROOT


def test_a_source_that_vanishes_while_it_is_read_leaves_nothing(tmp_path):
  write_folder(tmp_path / "text" / "a", make_texts(60))
  write_folder(tmp_path / "text" / "b", make_texts(40, seed=1))
  config = config_of(tmp_path)

  def vanish(stage, done, total):
    if stage == "writing b train":
      shutil.rmtree(tmp_path / "text" / "b", ignore_errors=True)

  with pytest.raises(ValueError, match=r"corpora/b-.* was not written: .*No such file") as caught:
    dataset.build(config, vanish)
  assert "\n" not in str(caught.value)
  assert [path.name[:2] for path in (tmp_path / "root/corpora").iterdir()] == ["a-"]
  write_folder(tmp_path / "text" / "b", make_texts(40, seed=1))
  assert dataset.build(config).corpora["b"].rows.exists()


_FULL = """
import resource, sys, tempfile
from resjax.data.config import DataConfig, TokenizerConfig
from resjax.data.dataset import build
tempfile.tempdir = sys.argv[2] + "/tmp"
corpora = {"a": {"source": sys.argv[1]}}
config = DataConfig(sys.argv[2] + "/root", 16, corpora, TokenizerConfig("bpe", 300), 0.1, 0.1)
for limit in map(int, sys.argv[3:]):
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
  try:
    print(limit, build(config).fingerprint, flush=True)
  except ValueError as error:
    print(limit, "error:", error, flush=True)
"""


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
  (tmp_path / "tmp").mkdir()
  source = write_folder(tmp_path / "text", make_texts(400))
  limits = ["0", "300", "66000", "131072", "140000", str(1 << 30)]
  command = [sys.executable, "-c", _FULL, str(source), str(tmp_path), *limits]
  result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
  *full, good = result.stdout.splitlines()
  assert len(full) == len(limits) - 1
  for line in full:
    assert "was not written: " in line and "File too large" in line and "config.data.root" in line
  names = [path.name for path in tmp_path.rglob("*") if path.is_dir()]
  assert good.split()[0] == limits[-1]
  assert not [name for name in names if name.startswith((".partial", "incomplete", "downloads"))]
  assert list((tmp_path / "tmp").iterdir()) == []  # TFDS has left no folder there


@pytest.mark.parametrize("kind", built.KINDS)
def test_what_a_killed_build_left_is_removed_by_the_next_of_any_config(copied, kind):
  root, config, _ = copied
  left, own = root / kind / ".partial-z-0123456789ab", root / kind / ".partial-notes"
  for folder in (left, own):
    (folder / "deep").mkdir(parents=True)
  before = files(root)
  dataset.build(config)
  assert not left.exists() and own.exists()
  assert set(before) - set(files(root)) == {f"{kind}/{left.name}", f"{kind}/{left.name}/deep"}


def test_a_partial_folder_of_another_process_stays_where_locks_do_not_work(copied, monkeypatch):
  root, config, _ = copied
  left = root / "rows" / ".partial-z-0123456789ab"
  left.mkdir()

  def no_locks(file, operation):
    raise OSError("no locks here")

  monkeypatch.setattr(storage.fcntl, "flock", no_locks)
  dataset.build(config)
  assert left.exists()


def test_waiting_for_another_build_names_the_lock(copied, warnings, monkeypatch):
  root, config, mark = copied
  monkeypatch.setattr(storage, "_QUIET_SECONDS", 0.2)
  done = []
  with storage.exclusive(root):
    other = threading.Thread(target=lambda: done.append(dataset.build(config).fingerprint))
    other.start()
    time.sleep(0.6)
    assert done == []
  other.join(30)
  assert done == [mark]
  assert warnings == [f"waiting for another process, which builds data and holds {root}/.lock"]


def test_data_that_cannot_be_written_are_used_as_they_are(copied):
  root, config, mark = copied
  before = files_of_kinds(root)
  assert dataset.build(config).fingerprint == mark
  assert files_of_kinds(root) == before
