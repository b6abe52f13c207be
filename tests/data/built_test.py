"""Damage to built data, and what is done about it: found, named, built anew where it can be."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from array_record.python import array_record_module

from resjax import manifest
from resjax.data import array_records, built, corpus_files, dataset, eval_text, pipeline, storage
from resjax.data.config import DataConfig, TokenizerConfig
from resjax.manifest import Damaged
from tests.data.conftest import make_texts, write_folder

ROOT = Path(__file__).parents[2]


def config_of(folder, text=None, **changes):
  """Returns a config with its root in `folder`, and its sources there or in `text`."""
  corpora = {name: {"source": str((text or folder) / "text" / name)} for name in ("a", "b")}
  values = {"root": str(folder / "root"), "seq_len": 16, "corpora": corpora}
  values |= {"validation_fraction": 0.1, "test_fraction": 0.1}
  return DataConfig(**values | {"tokenizer": TokenizerConfig("bpe", 300, 10_000)} | changes)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
  """Builds a small data set of two corpora once; returns the folder with text and root."""
  folder = tmp_path_factory.mktemp("original")
  write_folder(folder / "text" / "a", make_texts(60))
  write_folder(folder / "text" / "b", make_texts(40, seed=1))
  dataset.build(config_of(folder))
  return folder


@pytest.fixture
def copied(original, tmp_path):
  """Returns a copy of the built data set, its config and its fingerprint."""
  shutil.copytree(original / "root", tmp_path / "root")
  config = config_of(tmp_path, original)
  return tmp_path / "root", config, next((tmp_path / "root").glob("summary-*")).name[8:20]


@pytest.fixture(autouse=True)
def unsettled(monkeypatch):
  """Text counts as just written, so that no digests of it are kept beside the built data."""
  monkeypatch.setattr(corpus_files, "_TICK_NS", 1 << 62)


@pytest.fixture
def warnings(monkeypatch):
  """Collects the lines that built data are reported in."""
  lines = []
  for module in (built, storage, dataset):
    monkeypatch.setattr(module.logging, "warning", lambda text, *words: lines.append(text % words))
  return lines


def files(root):
  """Returns the content of all files under a folder, and the names of its folders and links."""
  found = {}
  for path in sorted(Path(root).rglob("*")):
    name = path.relative_to(root).as_posix()
    if path.is_symlink():
      found[name] = os.readlink(path)
    else:
      found[name] = path.read_bytes() if path.is_file() else None
  return found


def flip(path, rng):
  content = bytearray(path.read_bytes())
  content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
  path.write_bytes(content)


def cut(path, rng):
  os.truncate(path, rng.randrange(path.stat().st_size))


def empty(path, rng):
  del rng
  path.write_bytes(b"")


def extend(path, rng):
  with path.open("ab") as file:
    file.write(rng.randbytes(rng.randint(1, 100)))


def delete(path, rng):
  del rng
  path.unlink()


def swap(path, rng):
  """Exchanges a file with another one of the same ending, anywhere under the root."""
  root = next(parent for parent in path.parents if parent.name == "root")
  alike = [
    other
    for other in sorted(root.rglob("*"))
    if other.is_file() and other.name[-6:] == path.name[-6:]
    if other.read_bytes() != path.read_bytes()
  ]
  if not alike:
    delete(path, rng)
    return
  other = rng.choice(alike)
  content = path.read_bytes()
  path.write_bytes(other.read_bytes())
  other.write_bytes(content)


def rewrite(path, rng):
  """Replaces a file by another one of the same size."""
  path.write_bytes(rng.randbytes(path.stat().st_size))


def pipe(path, rng):
  del rng
  path.unlink()
  os.mkfifo(path)


def link(path, rng):
  """Replaces a file by a link to a flipped copy of it outside of the root."""
  root = next(parent for parent in path.parents if parent.name == "root")
  moved = root.parent / "moved"
  path.rename(moved)
  flip(moved, rng)
  path.symlink_to(moved)


def delete_folder(path, rng):
  del rng
  root = next(parent for parent in path.parents if parent.name == "root")
  shutil.rmtree(root / "/".join(path.relative_to(root).parts[:2])) if path.parent != root else (
    path.unlink()
  )


DAMAGES = (flip, flip, flip, cut, empty, extend, delete, swap, rewrite, pipe, link, delete_folder)


def find_all(config, mark):
  """Reads all that training and measuring read; returns None if there is no summary."""
  found = dataset.find(config.root, mark)
  texts = dataset.find_texts(config.root, mark)
  return found and texts and found


def damage_and_rebuild(original, folder, seed):
  """Damages one built file in a random way; compares what is found, and what is built anew.

  Returns:
    The damage in words, and whether the file was gone.
  """
  rng = random.Random(seed)
  shutil.rmtree(folder / "root", ignore_errors=True)
  (folder / "moved").unlink(missing_ok=True)
  shutil.copytree(original / "root", folder / "root")
  config = config_of(folder, original)
  before = files(folder / "root")
  mark = next((folder / "root").glob("summary-*")).name[8:20]
  names = [name for name, content in before.items() if content]
  kinds = sorted({(name.split("/")[0], name[-6:]) for name in names})
  kind = kinds[seed % len(kinds)]
  name = rng.choice([n for n in names if (n.split("/")[0], n[-6:]) == kind])
  harm = DAMAGES[seed // len(kinds) % len(DAMAGES)]
  case = f"{harm.__name__} of {name}"
  harm(folder / "root" / name, rng)
  damaged, gone = files_of_kinds(folder / "root"), not os.path.lexists(folder / "root" / name)
  try:
    assert find_all(config, mark) is None, f"{case} was not found"
  except ValueError as error:
    assert "\n" not in str(error) and str(folder / "root") in str(error), case
  assert files_of_kinds(folder / "root") == damaged, f"{case}: reading it has written"
  assert dataset.build(config).fingerprint == mark
  assert files(folder / "root") == before, f"{case} was not built anew"
  return case, gone


def files_of_kinds(root):
  """Returns name, size and time of all that lies under a folder, without opening pipes."""
  return {
    path.relative_to(root).as_posix(): (path.lstat().st_size, path.lstat().st_mtime_ns)
    for path in sorted(root.rglob("*"))
  }


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 240), marks=pytest.mark.slow)])
def test_every_damage_is_found_and_built_anew(original, tmp_path, warnings, seeds):
  for seed in seeds:
    warnings.clear()
    case, gone = damage_and_rebuild(original, tmp_path, seed)
    assert gone or any(" anew: " in line for line in warnings), case
    assert all(str(tmp_path / "root") in line and "\n" not in line for line in warnings), case


@pytest.mark.parametrize("harm", [flip, cut, delete, pipe])
@pytest.mark.parametrize("kind", built.KINDS)
def test_without_its_source_what_is_damaged_is_refused_in_one_line(copied, harm, kind, tmp_path):
  root, config, mark = copied
  path = max((root / kind).rglob("*"), key=lambda p: p.stat().st_size * p.is_file())
  harm(path, random.Random(0))
  with pytest.raises(ValueError, match=f"{path.name}.*build it anew with launch.build_dataset"):
    find_all(config, mark)
  gone = config_of(tmp_path, tmp_path / "nowhere")
  with pytest.raises(ValueError, match=r"config.data.corpora.a.source: .*nowhere"):
    dataset.build(gone)


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


def test_half_of_the_rows_are_not_taken_for_all(copied):
  root, config, mark = copied
  info = next((root / "rows").glob("a-*/packed_rows/*/dataset_info.json"))
  found = json.loads(info.read_text())
  train = next(split for split in found["splits"] if split["name"] == "train")
  half = int(train["shardLengths"][0]) // 2
  train["shardLengths"] = [str(half)]
  size = info.stat().st_size
  info.write_text(json.dumps(found, indent=2)[:size].ljust(size))
  for verify in ("full", "sizes"):
    with pytest.raises(Damaged, match=r"dataset_info\.json was altered"):
      dataset.find(config.root, mark, verify)
  summary = dataset.build(config)
  assert len(storage.read(summary.corpora["a"].rows, "train")) > half


def test_with_sizes_a_flip_is_found_when_its_record_is_read(copied, monkeypatch):
  root, config, mark = copied
  monkeypatch.setattr(built, "_SMALL", 0)
  summary = dataset.find(config.root, mark, "sizes")
  good = list(storage.read(summary.corpora["a"].rows, "validation"))
  shard = next((root / "rows").glob("a-*/packed_rows/*/*validation*"))
  content = shard.read_bytes()
  found = 0
  for seed in range(60):
    rng = random.Random(seed)
    damaged = bytearray(content)
    damaged[rng.randrange(3000 if seed % 2 else len(content))] ^= 1 << rng.randrange(8)
    shard.write_bytes(damaged)
    dataset.find(config.root, mark, "sizes")
    with pytest.raises(Damaged, match="was altered"):
      dataset.find(config.root, mark)
    try:
      records = list(storage.read(summary.corpora["a"].rows, "validation"))
      assert all((a["tokens"] == b["tokens"]).all() for a, b in zip(records, good, strict=True))
    except Damaged as error:  # the other flips are in bytes that nothing depends on
      assert f"{shard}: record" in str(error) and "\n" not in str(error)
      found += 1
  assert found > 10


def test_a_shard_that_is_damaged_after_the_start_ends_training_with_one_line(copied):
  root, config, _ = copied
  summary = dataset.build(config)
  batches = pipeline.train_batches(config, summary, batch_size=4, seed=0)
  next(batches)
  shard = next((root / "rows").glob("b-*/packed_rows/*/*train*"))
  content = bytearray(shard.read_bytes())
  content[200 : len(content) // 2] = bytes(len(content) // 2 - 200)
  with shard.open("r+b") as file:  # the same inode, which the reader has open
    file.write(content)
  with pytest.raises(ValueError, match=r"b-\w+/packed_rows/.*: record \d+ is damaged") as caught:
    for _ in range(100):
      next(batches)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [300, -2, 2**31 - 1])
def test_tokens_out_of_range_are_named(tmp_path, bad):
  folder = tmp_path / "rows" / "a-0123456789ab"
  place = folder / "packed_rows" / "1.0.0"
  place.mkdir(parents=True)
  rows = [np.arange(17, dtype=np.int32), np.arange(17, dtype=np.int32)]
  rows[1][3] = bad
  features = array_records.tfds.features.FeaturesDict(storage.row_features(16))
  writer = array_record_module.ArrayRecordWriter(str(place / "shard"), "group_size:1")
  for row in rows:
    writer.write(features.serialize_example({"tokens": row}))
  writer.close()
  splits = {"train": {"counts": {}, "shards": [("packed_rows/1.0.0/shard", 2)]}}
  facts = {"kind": "rows", "fingerprint": "0123456789ab", "splits": splits}
  manifest.write(folder, facts | {"seq_len": 16, "vocab_size": 300})
  records = storage.read(place, "train")
  assert (records[0]["tokens"] == rows[0]).all()
  with pytest.raises(Damaged, match=rf"shard: record 1 is damaged \(tokens are .*{bad}"):
    records[1]


def test_folders_that_were_swapped_or_renamed_are_found(copied):
  root, config, mark = copied
  one, two = sorted((root / "rows").iterdir())
  one.rename(root / "x")
  two.rename(one)
  (root / "x").rename(two)
  with pytest.raises(Damaged, match="so it was renamed or swapped"):
    dataset.find(config.root, mark)
  before = {path.name for path in (root / "rows").iterdir()}
  assert dataset.build(config).fingerprint == mark
  assert {path.name for path in (root / "rows").iterdir()} == before
  assert dataset.find(config.root, mark)


def test_data_without_a_manifest_are_built_anew_and_never_read(copied, warnings):
  root, config, mark = copied
  for path in root.rglob("manifest.json"):
    path.unlink()
  with pytest.raises(Damaged, match=r"has no manifest\.json, as data have that were built by"):
    dataset.find(config.root, mark)
  summary = root / f"summary-{mark}.json"
  values = json.loads(summary.read_text())
  del values["sha256"]
  summary.write_text(json.dumps(values))
  with pytest.raises(Damaged, match=r"no sha256, as of data that were built by resjax 0\.2\.0"):
    dataset.find(config.root, mark)
  dataset.build(config)
  assert sum("has no manifest.json" in line for line in warnings) == 5
  assert dataset.find(config.root, mark)


# What a stranger may write into a summary: names that lead out of the root.
HOSTILE = ["../victim", "rows/../../victim", "{victim}", "rows/link", "rows", "", "tokenizers/x"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("key", ["tokenizer", "text", "rows"])
def test_reading_a_strangers_data_changes_nothing(copied, tmp_path, key, name):
  root, config, mark = copied
  victim = tmp_path / "victim"
  (victim / "deep").mkdir(parents=True)
  (victim / "deep" / "file").write_text("precious")
  (root / "rows" / "link").symlink_to(victim)
  path = root / f"summary-{mark}.json"
  values = json.loads(path.read_text())
  (values if key == "tokenizer" else values["corpora"]["a"])[key] = name.format(victim=victim)
  del values["sha256"]
  path.write_text(json.dumps(values | {"sha256": summary_digest(values)}))
  (root / ".lock").unlink()
  before = files(tmp_path)
  with pytest.raises(ValueError, match=r"summary-.*(allowed|leads|damaged|missing)") as caught:
    find_all(config, mark)
  assert "\n" not in str(caught.value)
  assert files(tmp_path) == before


def summary_digest(values):
  return dataset.summary._digest(values)


def test_reading_makes_no_file_where_there_are_no_data(tmp_path):
  assert dataset.find(str(tmp_path / "root"), "0" * 12) is None
  assert dataset.find_texts(str(tmp_path / "root"), "0" * 12) is None
  config = config_of(tmp_path)
  assert eval_text.texts_of_dataset(config, "0" * 12, "validation") is None
  with pytest.raises(ValueError, match="allowed: 12 hexadecimal digits"):
    dataset.find(str(tmp_path / "root"), "../../x")
  assert list(tmp_path.iterdir()) == []


def test_a_root_that_leads_out_of_the_cache_is_refused(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  with pytest.raises(ValueError, match=r"config.data.root=.* a name below .*, without \.\."):
    dataset.find("gs://bucket/../../../victim", "0" * 12)


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


def test_who_sees_the_files_of_another_process_does_not_read_them_again(copied, monkeypatch):
  root, config, mark = copied
  monkeypatch.setattr(built, "_SMALL", 0)
  stamps = dataset.stamps(dataset.build(config))
  flip(next((root / "rows").glob("a-*/packed_rows/*/*train*")), random.Random(0))
  assert dataset.find(config.root, mark, "full", stamps)
  with pytest.raises(Damaged, match="was altered"):
    dataset.find(config.root, mark)
  shutil.copytree(root, root.with_name("other"), copy_function=shutil.copy2)
  with pytest.raises(Damaged, match="was altered"):  # the same times, but another disk
    dataset.find(str(root.with_name("other")), mark, "full", stamps)


def test_data_that_cannot_be_written_are_used_as_they_are(copied):
  root, config, mark = copied
  before = files_of_kinds(root)
  assert dataset.build(config).fingerprint == mark
  assert files_of_kinds(root) == before
