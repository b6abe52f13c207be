"""Whether data are the same depends on their text, not on times, paths or names."""

import dataclasses
import gzip
import io
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resjax.data import corpus_files, sources, text_corpus
from resjax.data.config import DataConfig, SettingNames, TokenizerConfig
from resjax.data.dataset import build
from resjax.data.sources import open_source
from tests.data.conftest import make_texts, write_folder

TEXTS = make_texts(30)


def config(source, root, **changes):
  corpora = {"a": {"source": str(source)}}
  settings = TokenizerConfig("bpe", 300, 10_000)
  return DataConfig(
    **({"root": str(root), "seq_len": 16, "corpora": corpora, "tokenizer": settings} | changes)
  )


def opened(of):
  return open_source(SettingNames.of_corpus("a"), dict(of.corpora)["a"])


@pytest.fixture
def first(tmp_path):
  return build(config(write_folder(tmp_path / "text", TEXTS), tmp_path / "first")).fingerprint


def test_times_and_paths_do_not_matter(tmp_path, first):
  for path in (tmp_path / "text").iterdir():
    os.utime(path, (1, 1))
  assert build(config(tmp_path / "text", tmp_path / "first")).fingerprint == first
  shutil.copytree(tmp_path / "text", tmp_path / "clone" / "elsewhere")
  clone = config(tmp_path / "clone" / "elsewhere", tmp_path / "second")
  assert build(clone).fingerprint == first
  for number, path in enumerate(sorted((tmp_path / "clone" / "elsewhere").iterdir())):
    path.rename(path.with_name(f"name{number:03}"))
  assert build(clone).fingerprint == first


def test_the_kind_of_file_does_not_matter(tmp_path, first):
  lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
  raw = io.BytesIO()
  pq.write_table(pa.table({"text": TEXTS}), raw)
  contents = {"a.jsonl": lines, "b.jsonl.gz": gzip.compress(lines, 1), "c.parquet": raw.getvalue()}
  contents["d.jsonl.gz"] = gzip.compress(lines, 9)
  for name, content in contents.items():
    (tmp_path / name).write_bytes(content)
    assert build(config(tmp_path / name, tmp_path / "first")).fingerprint == first


def test_one_character_and_the_order_matter(tmp_path, first):
  path = tmp_path / "text" / "0007.txt"
  path.write_text(TEXTS[7][:-1] + "!", newline="")
  assert build(config(tmp_path / "text", tmp_path / "first")).fingerprint != first
  path.write_text(TEXTS[7], newline="")
  assert build(config(tmp_path / "text", tmp_path / "first")).fingerprint == first
  path.rename(tmp_path / "text" / "9999.txt")
  assert build(config(tmp_path / "text", tmp_path / "first")).fingerprint != first


def test_the_standard_library_of_another_python_is_known_by_its_text(tmp_path, monkeypatch):
  library = write_folder(tmp_path / "lib", [])
  for number, text in enumerate(TEXTS):
    (library / f"module{number:02}.py").write_text(text, newline="")
  of_library = config(sources.STDLIB, tmp_path / "root")
  monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(library))
  first = build(of_library).fingerprint
  moved = library.rename(tmp_path / "python3.11.99")
  monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(moved))
  assert build(of_library).fingerprint == first
  (moved / "module03.py").write_text("import os\n")
  assert build(of_library).fingerprint != first


@pytest.fixture
def settled(monkeypatch):
  """Files count as settled at once, so that their digests are kept."""
  monkeypatch.setattr(corpus_files, "_TICK_NS", -1_000_000_000)


@pytest.fixture
def reads(monkeypatch):
  """The documents that were read, by id."""
  found = []
  read_text = sources.readers.read_text

  def counted(path, name, *piece):
    found.append(name)
    return read_text(path, name, *piece)

  monkeypatch.setattr(sources.readers, "read_text", counted)
  return found


def test_files_without_a_change_are_read_once(tmp_path, settled, reads):
  of = config(write_folder(tmp_path / "text", TEXTS), tmp_path / "root")
  first = text_corpus.digest("a", opened(of), of.root)
  assert len(reads) == 30
  assert text_corpus.digest("a", opened(of), of.root) == first and len(reads) == 30
  path = tmp_path / "text" / "0003.txt"
  state = path.stat()
  path.write_text(TEXTS[3].swapcase(), newline="")  # The same size,
  os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # and the same time.
  second = text_corpus.digest("a", opened(of), of.root)
  assert second != first and len(reads) == 60
  assert len(list((tmp_path / "root" / "digests").iterdir())) == 1  # The old one is gone.
  os.utime(path)
  assert text_corpus.digest("a", opened(of), of.root) == second and len(reads) == 90


def test_a_file_that_was_just_written_is_read_again(tmp_path, reads):
  of = config(write_folder(tmp_path / "text", TEXTS), tmp_path / "root")
  for _ in range(2):
    text_corpus.digest("a", opened(of), of.root)
  assert len(reads) == 60 and not (tmp_path / "root" / "digests").exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"documents": 1e99}', "nul\0", "flip", "pipe"])
def test_a_damaged_entry_is_ignored(tmp_path, settled, reads, damage):
  of = config(write_folder(tmp_path / "text", TEXTS), tmp_path / "root")
  first = text_corpus.digest("a", opened(of), of.root)
  (entry,) = (tmp_path / "root" / "digests").iterdir()
  whole = entry.read_text()
  if damage == "pipe":
    entry.unlink()
    os.mkfifo(entry)
  else:
    found = json.loads(whole)["text"]["blocks"]
    flipped = whole.replace(found[:4], "abcd", 1)
    entry.write_text(flipped if damage == "flip" else damage)
  assert text_corpus.digest("a", opened(of), of.root) == first and len(reads) == 60
  assert entry.read_text() == whole


def test_a_wrong_entry_does_not_stay(tmp_path, settled):
  of = config(write_folder(tmp_path / "text", TEXTS), tmp_path / "root")
  text_corpus.digest("a", opened(of), of.root)
  (entry,) = (tmp_path / "root" / "digests").iterdir()
  other = config(write_folder(tmp_path / "other", TEXTS[1:]), tmp_path / "more")
  wrong = text_corpus.digest("a", opened(other), other.root)
  entry.write_text(json.dumps({"name": entry.name, "text": dataclasses.asdict(wrong)}))
  with pytest.raises(ValueError, match="corpus a changed while it was read; run again"):
    build(of)
  assert build(of).corpora["a"].splits["train"].rows > 0


def test_entries_that_were_swapped_are_ignored(tmp_path, settled):
  """Else a run would be trained on the text of another one, whose data lie under its root."""
  folders = write_folder(tmp_path / "text", TEXTS), write_folder(tmp_path / "other", TEXTS[1:])
  both = [config(folder, tmp_path / "root") for folder in folders]
  first, second = (build(of).fingerprint for of in both)
  one, two = (tmp_path / "root" / "digests").iterdir()
  kept = one.read_text(), two.read_text()
  one.write_text(kept[1])
  two.write_text(kept[0])
  assert [build(of).fingerprint for of in both] == [first, second] and first != second
  assert (one.read_text(), two.read_text()) == kept


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path, settled, reads):
  of = config(write_folder(tmp_path / "text", TEXTS), tmp_path / "root")
  (tmp_path / "root").mkdir()
  (tmp_path / "root" / "digests").write_text("a file where the folder should be")
  for _ in range(2):
    text_corpus.digest("a", opened(of), of.root)
  assert len(reads) == 60


def test_objects_are_read_once_for_all_machines(gcs, bucket, tmp_path, monkeypatch, reads):
  for number, text in enumerate(TEXTS):
    gcs.put((bucket, f"text/{number:02}.txt"), text.encode())
  of = config(f"gs://{bucket}/text", f"gs://{bucket}/data")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
  first = text_corpus.digest("a", opened(of), of.root)
  assert len(reads) == 30
  gcs.put((bucket, "text/00.txt"), TEXTS[0].encode())  # Another version of the same text.
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
  assert text_corpus.digest("a", opened(of), of.root) == first and len(reads) == 30
  gcs.put((bucket, "text/00.txt"), TEXTS[0].encode()[:-1] + b"!")
  changed = text_corpus.digest("a", opened(of), of.root)
  assert changed.first_difference(first) == (0, 1) and len(reads) == 60
  local = config(write_folder(tmp_path / "text", TEXTS), tmp_path / "root")
  assert text_corpus.digest("a", opened(local), local.root) == first


def test_entries_about_local_files_stay_on_the_machine(gcs, bucket, tmp_path, monkeypatch, settled):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  of = config(write_folder(tmp_path / "text", TEXTS), f"gs://{bucket}/data")
  text_corpus.digest("a", opened(of), of.root)
  assert not gcs.names(bucket) and list((tmp_path / "cache").rglob("digests/*.json"))


def test_built_data_are_taken_without_their_sources(tmp_path, first):
  summary = build(config(tmp_path / "text", tmp_path / "first"))
  shutil.copytree(tmp_path / "first", tmp_path / "copy")
  shutil.rmtree(tmp_path / "first")
  shutil.rmtree(tmp_path / "text")
  taken = build(config(tmp_path / "text", tmp_path / "copy", built=first))
  assert taken.fingerprint == first and taken.path.is_relative_to(tmp_path / "copy")
  assert taken.corpora["a"].splits == summary.corpora["a"].splits


@pytest.mark.parametrize(
  ("changes", "word"),
  [
    ({"built": "0" * 12}, "there is no summary-000000000000.json in config.data.root="),
    ({"built": "../x"}, "config.data.built is '../x'; 12 hexadecimal digits"),
    ({"seq_len": 32}, "has seq_len 16, and config.data.seq_len is 32"),
    ({"corpora": {"b": {"source": "x"}}}, "has corpora ['a'], and config.data.corpora is ['b']"),
    ({"tokenizer": TokenizerConfig("bpe", 299)}, "300 tokens, which is not that of config.data.t"),
    ({"tokenizer": TokenizerConfig("bpe", 301, 10_000)}, "config.data.tokenizer.vocab_size=301"),
    ({"tokenizer": TokenizerConfig("byte")}, "has tokenizer.name bpe, and config.data.token"),
  ],
)
def test_built_data_of_another_config_are_refused(tmp_path, first, changes, word):
  with pytest.raises(ValueError, match=r"config\.data\.built") as caught:
    build(config(tmp_path / "text", tmp_path / "first", **({"built": first} | changes)))
  assert word in str(caught.value) and "\n" not in str(caught.value)


def test_a_tokenizer_that_ran_out_of_merges_is_taken(tmp_path):
  few = TokenizerConfig("bpe", 100_000, 10_000)
  of = config(write_folder(tmp_path / "text", TEXTS), tmp_path / "root", tokenizer=few)
  made = build(of)
  assert made.vocab_size < few.vocab_size
  taken = dataclasses.replace(of, built=made.fingerprint)
  assert build(taken).vocab_size == made.vocab_size
  fewer = dataclasses.replace(few, vocab_size=made.vocab_size + 1)
  with pytest.raises(ValueError, match=r"tokenizer of .* tokens, which is not that of"):
    build(dataclasses.replace(taken, tokenizer=fewer))


def test_a_split_that_was_not_built_is_asked_for(tmp_path):
  text = write_folder(tmp_path / "text", TEXTS)
  mark = build(config(text, tmp_path / "root", test_fraction=0.0)).fingerprint
  with pytest.raises(ValueError, match="has the splits train, validation alone"):
    build(config(text, tmp_path / "root", built=mark))


def test_lost_rows_of_taken_data_are_named(tmp_path, first):
  shutil.rmtree(tmp_path / "first" / "rows")
  with pytest.raises(ValueError, match="rows"):
    build(config(tmp_path / "text", tmp_path / "first", built=first))


def test_records_stay_small(tmp_path, monkeypatch):
  monkeypatch.setattr("resjax.data.text_digest.MOST_BLOCKS", 8)
  of = config(write_folder(tmp_path / "text", TEXTS), tmp_path / "root")
  summary = build(of)
  noted = json.loads((summary.corpora["a"].text / "metadata.json").read_text())["text"]
  assert noted["documents"] == 30 and len(noted["blocks"]) <= 9 * 32
