"""Damage to built data, and what is done about it: found, named, built anew where it can be."""

import json
import os
import random
import shutil

import numpy as np
import pytest
from array_record.python import array_record_module

from resjax.base import manifest
from resjax.base.manifest import Damaged
from resjax.data import array_records, built, dataset, pipeline, storage
from tests.data.built.conftest import config_of, files, files_of_kinds, find_all
from tests.data.built.damages import DAMAGES, cut, delete, flip, pipe


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


@pytest.mark.parametrize(
  "seeds", [range(20), pytest.param(range(20, 240), marks=pytest.mark.release)]
)
@pytest.mark.slow
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
  with pytest.raises(ValueError, match=f"{path.name}.*build it anew with resjax build_dataset"):
    find_all(config, mark)
  gone = config_of(tmp_path, tmp_path / "nowhere")
  with pytest.raises(ValueError, match=r"config.data.corpora.a.source: .*nowhere"):
    dataset.build(gone)


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
  features = array_records.tfds.features.FeaturesDict(storage.row_features(16, 0))
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
