"""Corpora in an object store, and built data that machines share through one."""

import gzip
import io
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resjax.data import dataset, mirror
from resjax.data.config import CorpusConfig, DataConfig, SettingNames, TokenizerConfig
from resjax.data.sources import open_source
from tests.data.conftest import make_texts, write_folder

TEXTS = make_texts(12)


def texts(bucket, name, **settings):
  source = open_source(
    SettingNames.of_corpus("c"), CorpusConfig(f"gs://{bucket}/{name}", **settings)
  )
  return [document.text for document in source.documents()]


@pytest.fixture
def filled(gcs, bucket):
  """Makes a bucket with text, JSONL and Parquet, and with files that belong to no corpus."""
  for number, text in enumerate(TEXTS):
    gcs.put((bucket, f"text/{number % 3}/{number:02}.txt"), text.encode())
  for name in ("text/.hidden.txt", "text/__pycache__/x.txt", "text/", "text/1/"):
    gcs.put((bucket, name), b"")
  lines = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS).encode()
  gcs.put((bucket, "json/plain.jsonl"), lines)
  gcs.put((bucket, "json/packed.jsonl.gz"), gzip.compress(lines))
  raw = io.BytesIO()
  pq.write_table(pa.table({"text": TEXTS, "number": list(range(12))}), raw, row_group_size=5)
  gcs.put((bucket, "table/rows.parquet"), raw.getvalue())
  return bucket


def test_documents_are_those_of_the_same_files_on_a_disk(gcs, filled, tmp_path):
  for number, text in enumerate(TEXTS):
    folder = tmp_path / "text" / str(number % 3)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:02}.txt").write_text(text, newline="")
  for name in ("2-a.txt", "2.txt", "2a.txt"):  # before, and after, those of the folder 2
    (tmp_path / "text" / name).write_text(name)
    gcs.put((filled, f"text/{name}"), name.encode())
  local = open_source(SettingNames.of_corpus("c"), CorpusConfig(str(tmp_path / "text")))
  remote = open_source(SettingNames.of_corpus("c"), CorpusConfig(f"gs://{filled}/text"))
  assert list(remote.documents()) == list(local.documents())
  assert list(remote.documents()) == list(remote.documents())


@pytest.mark.parametrize(
  ("name", "settings"),
  [
    ("json/plain.jsonl", {"field": "body"}),
    ("json/packed.jsonl.gz", {"field": "body"}),
    ("table", {}),
    ("table/*.parquet", {"format": "parquet"}),
  ],
)
def test_every_format_is_read(filled, name, settings):
  assert texts(filled, name, **settings) == TEXTS


def test_globs_and_folders_choose(filled):
  assert texts(filled, "text/1/*.txt") == TEXTS[1::3]
  assert texts(filled, "text/**/*4.txt") == [TEXTS[4]]
  assert texts(filled, "json", field="body") == TEXTS * 2
  assert texts(filled, "text/0/03.txt") == [TEXTS[3]]


def test_the_checksums_of_objects_tell_whether_they_changed(gcs, filled):
  def stamps():
    return open_source(SettingNames.of_corpus("c"), CorpusConfig(f"gs://{filled}/text")).stamps

  before = stamps()
  gcs.put((filled, "text/0/00.txt"), TEXTS[0].encode())  # another version of the same text
  assert stamps() == before
  gcs.put((filled, "text/0/00.txt"), TEXTS[0].encode()[:-1] + b"!")
  assert stamps() != before


def test_what_is_not_there_is_named(filled):
  wanted = f"config.data.corpora.c.source: gs://{filled}/tex is no file or folder"
  with pytest.raises(ValueError, match=re.escape(wanted)):
    texts(filled, "tex")


@pytest.fixture
def config(bucket, tmp_path):
  source = write_folder(tmp_path / "text", make_texts(40))
  settings = TokenizerConfig("bpe", 300, 10_000)
  corpora = {"a": {"source": str(source)}}
  return DataConfig(f"gs://{bucket}/data", 16, corpora, settings, 0.1, 0.1)


def records(summary):
  """Returns the bytes of all files that training reads."""
  folders = [corpus.rows for corpus in summary.corpora.values()]
  files = [path for folder in folders for path in sorted(folder.iterdir())]
  return [path.read_bytes() for path in (*files, summary.tokenizer)]


def test_another_machine_reads_what_one_has_built(gcs, bucket, config, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
  first = dataset.build(config)
  assert first.path.is_relative_to(tmp_path / "first/resjax/gs" / bucket / "data")
  requests = len(gcs.requests)
  assert dataset.build(config) == first
  assert not [name for method, name in gcs.requests[requests:] if method != "GET"]
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
  assert dataset.find(config.root, "0" * 12) is None
  second = dataset.find(config.root, first.fingerprint)
  assert second.path.is_relative_to(tmp_path / "second") and records(second) == records(first)
  assert not second.corpora["a"].text.exists()
  third = dataset.build(config)  # As a new machine does after a preemption.
  assert third == second and third.corpora["a"].text.exists()
  assert not [name for method, name in gcs.requests[requests:] if method != "GET"]


def test_a_machine_that_died_while_it_published_goes_on(gcs, bucket, config, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
  whole = dataset.build(config)
  rows = f"data/rows/{whole.corpora['a'].rows.parts[-3]}"
  for name in gcs.names(f"{bucket}/{rows}"):
    if name.endswith(("manifest.json", "features.json")):  # The manifest is written last.
      del gcs.objects[bucket, name]
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
  root = mirror.local(config.root)
  (root / rows.removeprefix("data/") / "packed_rows").mkdir(parents=True)  # As after a kill.
  assert records(dataset.build(config))[-2:] == records(whole)[-2:]
  assert gcs.get((bucket, f"{rows}/manifest.json")).data
  features = bucket, f"{rows}/packed_rows/1.0.0/features.json"
  gcs.put(features, gcs.get(features).data[:-1])
  damaged = r"rows/a-\w+ is damaged: gs://.*features.json"
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
  with pytest.raises(ValueError, match=damaged):
    dataset.find(config.root, whole.fingerprint)
  del gcs.objects[features]
  with pytest.raises(ValueError, match=damaged):
    dataset.find(config.root, whole.fingerprint)


def test_a_damaged_copy_is_brought_again(gcs, bucket, config, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
  built = dataset.build(config)
  good, text = records(built), built.path.read_text()
  requests = len(gcs.requests)
  shard = next(path for path in built.corpora["a"].rows.iterdir() if "train" in path.name)
  shard.write_bytes(shard.read_bytes()[::-1])
  built.tokenizer.unlink()
  built.path.write_text(text.replace("16", "32"))
  assert records(dataset.find(config.root, built.fingerprint)) == good
  assert built.path.read_text() == text
  assert not [name for method, name in gcs.requests[requests:] if method != "GET"]


def test_damage_in_the_bucket_is_mended_by_the_next_build(
  gcs, bucket, config, tmp_path, monkeypatch
):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
  built = dataset.build(config)
  damaged = [name for name in gcs.names(f"{bucket}/data") if not name.endswith("manifest.json")]
  for name in damaged:
    content = gcs.get((bucket, name)).data or b"?"  # the list of what was left out is empty
    gcs.put((bucket, name), content[:-1] + bytes([content[-1] ^ 1]))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
  with pytest.raises(ValueError, match=r"is not as it was written|holds no JSON"):
    dataset.find(config.root, built.fingerprint)
  assert records(dataset.build(config)) == records(built)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
  assert records(dataset.find(config.root, built.fingerprint)) == records(built)
  assert not list(tmp_path.rglob(".partial-*"))
