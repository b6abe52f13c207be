"""Which built data are listed as used by which runs, and what is deleted."""

import json
import shutil

import pytest

from resjax.data import storage
from resjax.train.runs import data_use, workdir
from tests.data.conftest import make_texts, write_folder
from tests.train.runs.run_text_test import run_of, start


@pytest.fixture
def runs(tmp_path):
  """A folder with two runs on one text, beside data that a mistake left."""
  text = write_folder(tmp_path / "text", make_texts(30))
  for name, seq_len in (("a", 16), ("nested/b", 16), ("mistake", 8)):
    folder = workdir.create(str(tmp_path / "runs" / name))
    start(run_of(tmp_path, text, seq_len=seq_len), folder)
  shutil.rmtree(tmp_path / "runs" / "mistake")
  return tmp_path / "runs"


def find(runs):
  return data_use.find(str(runs.parent / "data"), [runs])


def test_data_are_listed_with_their_runs_and_those_of_none_are_deleted(runs):
  used = (str(runs / "a"), str(runs / "nested" / "b"))
  found = find(runs)
  assert found.runs == 2 and not found.unknown and len(found.summaries) == 1
  kinds = [(folder.name.split("/")[0], folder.runs) for folder in found.folders]
  # Text and tokenizer do not depend on the length of rows.
  assert sorted(kinds) == [
    ("corpora", used), ("rows", ()), ("rows", used), ("tokenizers", used)
  ]  # fmt: skip
  assert all(folder.bytes > 0 and 0 <= folder.days < 1 for folder in found.folders)
  (idle,) = found.unused
  data = runs.parent / "data"
  assert (data / idle.name).exists()  # to look deletes nothing
  data_use.prune(str(data), [runs])
  assert not (data / idle.name).exists() and not (data / found.summaries[0]).exists()
  left = find(runs)
  assert not left.unused and not left.summaries and len(left.folders) == 3
  # Both runs go on with what is there.
  text, before = runs.parent / "text", {f.name: f.days for f in left.folders}
  start(run_of(runs.parent, text), runs / "a")
  assert {f.name for f in find(runs).folders} == set(before)


def test_a_run_behind_a_link_is_found(runs, tmp_path):
  shutil.move(runs / "a", tmp_path / "elsewhere")
  shutil.rmtree(runs / "nested")
  (runs / "link").symlink_to(tmp_path / "elsewhere")
  (runs / "circle").symlink_to(runs)
  found = find(runs)
  assert found.runs == 1 and len(found.unused) == 1
  shutil.move(tmp_path / "elsewhere", tmp_path / "gone")  # as where a disk is not mounted
  (text,) = find(runs).unknown
  assert text.startswith(f"{runs / 'link'} is a link that leads nowhere")
  with pytest.raises(ValueError, match=r"nothing is deleted: .* leads nowhere"):
    data_use.prune(str(runs.parent / "data"), [runs])


def test_nothing_is_deleted_where_it_is_not_known_what_runs_use(runs):
  data = runs.parent / "data"

  def refused(words):
    before = sorted(data.rglob("*"))
    with pytest.raises(ValueError, match=words):
      data_use.prune(str(data), [runs])
    assert sorted(data.rglob("*")) == before

  starting = workdir.create(str(runs / "new"))
  with workdir.lock(starting):
    refused("new is starting; wait for its first step")
  record = runs / "a" / "run.json"
  text = record.read_text()
  record.write_text("{")
  refused("it is damaged")
  record.write_text(json.dumps(json.loads(text) | {"data_fingerprint": "0" * 12}))
  refused("have no summary-000000000000.json")
  record.write_text(text)
  with pytest.raises(ValueError, match="is no folder"):
    data_use.find(str(data), [runs / "gone"])


def test_prune_waits_for_a_build(runs, monkeypatch):
  data = runs.parent / "data"
  with storage.exclusive(data):
    assert not data_use.find(str(data), [runs.parent]).unknown  # the root itself is no run
  held = []
  monkeypatch.setattr(storage, "_lock", lambda file, path: held.append(path))
  data_use.prune(str(data), [runs])
  assert held == [data / ".lock"]
