import gzip
import json
import os
import re
import socket
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds

from resjax.data import readers
from resjax.data.config import CorpusConfig, SettingNames
from resjax.data.sources import open_source


def _texts(source, **options):
  documents = open_source(
    SettingNames.of_corpus("mine"), CorpusConfig(str(source), **options)
  ).documents()
  return [document.text for document in documents]


def _fails(message, source, **options):
  with pytest.raises(ValueError, match=re.escape(message)) as caught:
    _texts(source, **options)
  assert "\n" not in str(caught.value)


def test_standard_library_is_the_running_one():
  source = open_source(SettingNames.of_corpus("stdlib"), CorpusConfig("python-stdlib"))
  ids = {document.id for document in source.documents()}
  assert {"argparse.py#0", "json/decoder.py#0"} <= ids
  assert not any("site-packages" in i or "__pycache__" in i for i in ids)
  again = open_source(SettingNames.of_corpus("stdlib"), CorpusConfig("python-stdlib"))
  assert again.stamps == source.stamps
  assert sys.version not in str((source.place, source.stamps))


def test_folder_is_read_in_order_without_hidden_files(tmp_path):
  (tmp_path / "sub").mkdir()
  (tmp_path / ".git").mkdir()
  (tmp_path / "b.txt").write_bytes(b"zwei\r\nlines")
  (tmp_path / "a.md").write_text("one")
  (tmp_path / "sub" / "c").write_text("three")
  (tmp_path / ".git" / "x").write_text("hidden")
  (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
  assert _texts(tmp_path) == ["one", "zwei\r\nlines", None, "three"]
  assert _texts(tmp_path / "*.txt") == ["zwei\r\nlines", None]
  assert _texts(tmp_path / "**" / "c") == ["three"]


def test_one_text_file_becomes_many_documents(tmp_path):
  lines = [f"line {i} é\n" for i in range(40_000)]
  (tmp_path / "all.txt").write_text("".join(lines), encoding="utf-8")
  pieces = _texts(tmp_path / "all.txt")
  assert 90 <= len(pieces) <= 110
  assert "".join(pieces) == "".join(lines)
  assert all(piece.endswith("\n") for piece in pieces)


def test_long_file_of_several_is_cut_to_bound_memory(tmp_path):
  text = "x" * (3 * readers.MAX_PIECE) + "\nend"  # A line that is longer than a piece.
  (tmp_path / "long.txt").write_text(text)
  (tmp_path / "short.txt").write_text("short")
  *pieces, short = _texts(tmp_path)
  assert short == "short" and "".join(pieces) == text
  assert max(map(len, pieces)) <= 2 * readers.MAX_PIECE


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz"])
def test_jsonl(tmp_path, name):
  records = [{"text": "one\ntwo"}, {"text": None, "n": 1}, {"text": "é\u2028x"}]
  lines = [json.dumps(records[0]), "", json.dumps(records[1])]
  lines += [json.dumps(records[2], ensure_ascii=False), r'{"text": "\ud800"}']
  opener = gzip.open if name.endswith(".gz") else open
  with opener(tmp_path / name, "wt", encoding="utf-8") as file:
    file.write("\n".join(lines))
  assert _texts(tmp_path / name) == ["one\ntwo", "", "é\u2028x", None]
  (tmp_path / "README.md").write_text("not a document of the corpus")
  assert len(_texts(tmp_path)) == 4


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ('{"text": "a"', "docs.jsonl:2 is not JSON"),
    ("[1]", "docs.jsonl:2[0] is not a JSON object but a int"),
    ('{"body": "a", "id": 1}', "docs.jsonl:2 has no field 'text'; it has ['body', 'id']"),
    ('{"text": 3}', "docs.jsonl:2: 'text' is a int, not text"),
  ],
)
def test_bad_jsonl_names_file_and_line(tmp_path, line, message):
  (tmp_path / "docs.jsonl").write_text('{"text": "ok"}\n' + line + "\n")
  _fails(message, tmp_path / "docs.jsonl")


def test_binary_file_as_jsonl(tmp_path):
  (tmp_path / "docs.jsonl").write_bytes(b"\xff\xfe\x00")
  _fails("docs.jsonl is not UTF-16-LE text, so not JSON: truncated data in line 1", tmp_path)


def test_parquet_is_streamed_with_the_named_column(tmp_path):
  texts = [f"row {i}" for i in range(1000)] + [None]
  table = pa.table({"body": texts, "n": list(range(1001))})
  pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
  assert _texts(tmp_path, field="body") == [*texts[:-1], ""]
  _fails("has no column 'text'; it has ['body', 'n']", tmp_path)
  _fails("config.data.corpora.mine.field", tmp_path)
  _fails("column 'n' holds int64, not text", tmp_path, field="n")
  (tmp_path / "b.parquet").write_text("no parquet")
  _fails("b.parquet is not a Parquet file", tmp_path / "b.parquet")


def test_missing_empty_and_mixed_sources(tmp_path):
  _fails(f"config.data.corpora.mine.source: {tmp_path / 'nope'} is no file", tmp_path / "nope")
  _fails("python-stdlib, a file, folder or glob", tmp_path / "*.md")
  (tmp_path / "empty").mkdir()
  _fails("a folder without files", tmp_path / "empty")
  (tmp_path / "a.jsonl").write_text('{"text": "x"}')
  _fails(f"no file under {tmp_path} holds parquet; set", tmp_path, format="parquet")
  pq.write_table(pa.table({"text": ["y"]}), tmp_path / "b.parquet")
  _fails("holds jsonl (a.jsonl) and parquet (b.parquet); choose with", tmp_path)
  assert _texts(tmp_path, format="parquet") == ["y"]
  assert _texts(tmp_path / "a.jsonl", format="text") == ['{"text": "x"}']


class TinyTexts(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version("1.0.0")
  code_path = None

  def _info(self):
    features = {"text": tfds.features.Text(), "label": tfds.features.Scalar(np.int64)}
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples("é"), "test": self._generate_examples("held out")}

  def _generate_examples(self, text):
    for index in range(5):
      yield index, {"text": f"{text} {index}", "label": index}


class NeedyTexts(TinyTexts):
  def _generate_examples(self, text):
    import a_package_that_is_not_there

    yield 0, a_package_that_is_not_there.read()


def test_tfds_builder_gives_its_train_split(tmp_path, monkeypatch):
  monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(tmp_path))
  assert sorted(_texts("tfds:tiny_texts")) == [f"é {i}" for i in range(5)]
  held_out = open_source(SettingNames.of_corpus("mine"), CorpusConfig("tfds:tiny_texts"), "test")
  assert sorted(document.text for document in held_out.documents()) == [
    f"held out {i}" for i in range(5)
  ]
  with pytest.raises(ValueError, match=r"no split 'dev'; it has \['test', 'train'\]"):
    open_source(SettingNames.of_corpus("mine"), CorpusConfig("tfds:tiny_texts"), "dev")
  _fails("TFDS tiny_texts has no feature 'body'", "tfds:tiny_texts", field="body")
  _fails("feature 'label' of TFDS tiny_texts is not text", "tfds:tiny_texts", field="label")
  info = tmp_path / "tiny_texts" / "1.0.0" / "dataset_info.json"
  info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
  _fails("1.0.0 holds tfrecord; only array_record is read", "tfds:tiny_texts")
  _fails("needs the package 'a_package_that_is_not_there'", "tfds:needy_texts")
  _fails("TFDS knows no dataset 'no_such_set'", "tfds:no_such_set")


def test_stamps_follow_the_files(tmp_path):
  (tmp_path / "a.txt").write_text("one")

  def stamps():
    return open_source(SettingNames.of_corpus("x"), CorpusConfig(str(tmp_path))).stamps

  first = stamps()
  assert stamps() == first
  (tmp_path / "a.txt").write_text("two!")
  second = stamps()
  (tmp_path / "b.txt").write_text("")
  assert len({str(i) for i in (first, second, stamps())}) == 3


def _limited(tmp_path, name, write, most=2 << 20):
  """The error for a file with a line or document that is a little longer than is allowed."""
  write(tmp_path / name, "x" * most)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(readers, "MAX_LINE", most // 2)
    _fails(f"{name}", tmp_path / name)
    with pytest.raises(ValueError, match="the most that a JSON object or a document may have"):
      _texts(tmp_path / name)


def test_long_lines_and_documents_are_refused_before_they_are_in_memory(tmp_path):
  def packed(path, text):
    with gzip.open(path, "wt") as file:
      file.write('{"text": "' + text)

  def table(path, text):
    pq.write_table(pa.table({"text": [text]}), path)

  _limited(tmp_path, "a.jsonl", lambda path, text: path.write_text('{"text": "' + text))
  _limited(tmp_path, "b.jsonl.gz", packed)
  _limited(tmp_path, "c.parquet", table)
  (tmp_path / "c.parquet").unlink()
  rows = ["short"] * 200 + ["x" * 3000]
  pq.write_table(pa.table({"text": rows}), tmp_path / "c.parquet")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(readers, "MAX_LINE", 1000)
    _fails("c.parquet:200 has more than 1,000 bytes", tmp_path / "c.parquet")
    patch.setattr(readers, "MAX_LINE", 3000)
    assert _texts(tmp_path / "c.parquet") == rows


def test_memory_for_a_line_is_bounded(tmp_path):
  """One gigabyte in one line, which compresses to a megabyte."""
  with gzip.open(tmp_path / "a.jsonl.gz", "wb", compresslevel=1) as file:
    file.write(b'{"text": "')
    for _ in range(1024):
      file.write(b"x" * (1 << 20))
  tracemalloc.start()
  _fails("a.jsonl.gz:1 has more than 16,777,216 bytes", tmp_path / "a.jsonl.gz")
  assert tracemalloc.get_traced_memory()[1] < 4 * readers.MAX_LINE
  tracemalloc.stop()


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.gz"])
def test_damaged_gzip_files_are_one_line(tmp_path, name):
  whole = gzip.compress(b'{"text": "' + os.urandom(50_000).hex().encode() + b'"}\n')
  flipped = bytearray(whole)
  flipped[20_000] ^= 255
  for content in (
    whole[:-9],
    whole[:-4],
    whole[:30_000],
    whole[:5],
    bytes(flipped),
    b"\xffno gzip",
  ):
    (tmp_path / name).write_bytes(content)
    _fails(f"{name} is a damaged gzip file: ", tmp_path / name)


def test_damaged_parquet_files_are_one_line(tmp_path):
  path = tmp_path / "a.parquet"
  pq.write_table(pa.table({"text": [os.urandom(50).hex() for _ in range(2000)]}), path)
  whole = path.read_bytes()
  for content in (whole[:-9], whole[:100], b"PAR1" * 100, b""):
    path.write_bytes(content)
    _fails("a.parquet is not a Parquet file; set config.data.corpora.mine.format: ", path)
  path.write_bytes(whole[:4] + b"\0" * 4000 + whole[4004:])
  _fails("a.parquet is damaged after 0 rows: ", path)


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ('{"text": ' + "[" * 200_000, "a.jsonl:1 is nested too deeply"),
    ('{"text": "x", "n": ' + "1" * 9000 + "}", "a.jsonl:1 has a number with too many digits"),
    ('{"' + "k" * 9000 + '": "x"}', "a.jsonl:1 has no field 'text'; it has ['kkk"),
    ("{" + ", ".join(f'"k{i:04}": 1' for i in range(9000)) + "}", "'k0019'] and 8980 more; set "),
    ("null", "a.jsonl:1 is not a JSON object but a NoneType"),
  ],
)
def test_hostile_lines_are_one_short_line(tmp_path, line, message):
  (tmp_path / "a.jsonl").write_text(line + "\n", encoding="utf-8")
  with pytest.raises(ValueError, match=re.escape(message)) as caught:
    _texts(tmp_path / "a.jsonl")
  assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def _special(folder):
  """Makes what is no regular file: a pipe, a socket, links that lead nowhere, or in a circle."""
  folder.mkdir()
  os.mkfifo(folder / "pipe")
  (folder / "lost").symlink_to(folder / "nothing")
  (folder / "loop").symlink_to(folder / "loop")
  (folder / "null").symlink_to("/dev/zero")
  (folder / "up").symlink_to(folder)
  with socket.socket(socket.AF_UNIX) as server:
    here = os.getcwd()
    os.chdir(folder)  # Paths of sockets are short.
    server.bind("socket")
    os.chdir(here)
  return ("pipe", "lost", "loop", "null", "socket")


def test_what_is_no_regular_file_is_left_out_with_one_warning(tmp_path, caplog):
  _special(tmp_path / "text")
  (tmp_path / "text" / "a.txt").write_text("one")
  for source in (tmp_path / "text", tmp_path / "text" / "*"):
    caplog.clear()
    assert _texts(source) == ["one"]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "left out of the corpus: " in warning
    assert all(name in warning for name in ("loop", "lost", "null", "pipe", "socket"))
  (tmp_path / "text" / "a.txt").unlink()
  _fails("a folder without files", tmp_path / "text")


def test_what_is_no_regular_file_is_refused_by_name(tmp_path):
  for name in _special(tmp_path / "text"):
    _fails(f"{name} is no regular file but a pipe, a socket", tmp_path / "text" / name)
  _fails("/dev/zero is no regular file", "/dev/zero")


def test_a_file_that_becomes_a_pipe_or_vanishes(tmp_path):
  (tmp_path / "a.txt").write_text("one")
  source = open_source(SettingNames.of_corpus("mine"), CorpusConfig(str(tmp_path)))
  (tmp_path / "a.txt").unlink()
  with pytest.raises(OSError, match=r"a\.txt"):
    list(source.documents())
  os.mkfifo(tmp_path / "a.txt")
  with pytest.raises(ValueError, match=r"a\.txt is no regular file"):
    list(source.documents())


def test_names_that_are_no_text_are_spelled(tmp_path):
  folder = os.fsencode(tmp_path / "text")
  os.mkdir(folder)
  for name in (b"a\nb.jsonl", b"c\xff.jsonl", "é \u2028.jsonl".encode()):
    with open(os.path.join(folder, name), "w") as file:
      file.write('{"text": "x"}')
  source = open_source(SettingNames.of_corpus("mine"), CorpusConfig(str(tmp_path / "text")))
  ids = [document.id for document in source.documents()]
  assert ids == ["a\\nb.jsonl:1", "c\\xff.jsonl:1", "é \\u2028.jsonl:1"]
  (tmp_path / "text" / "a\nb.jsonl").write_text("[1]")
  _fails("a\\nb.jsonl:1[0] is not a JSON object", tmp_path / "text")


def test_globs_follow_no_circle_of_links(tmp_path):
  folder = tmp_path / "text"
  (folder / "sub" / ".hidden").mkdir(parents=True)
  for name in ("a", "b", "c"):
    (folder / "sub" / name).symlink_to(folder)
  (folder / "sub" / "x.txt").write_text("one")
  (folder / "sub" / ".hidden" / "y.txt").write_text("two")
  for pattern in ("**/*.txt", "**", "*/*.txt", "s[tu]b/?.txt", "***/x**.txt"):
    assert _texts(folder / pattern) == ["one"], pattern
  assert _texts(folder / "**" / ".hidden" / "*") == ["two"]
  _fails("no file or folder, and matches none", folder / "**" / "*.md")


def test_a_name_that_is_no_unicode_can_be_printed(tmp_path):
  _fails("lost\\xff\\n is no file or folder", f"{tmp_path}/lost\udcff\n")
