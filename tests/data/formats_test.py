"""Formats are looked at: what files hold decides, whatever they are called."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import tarfile
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resjax.data import json_text, readers
from resjax.data.config import CorpusConfig, SettingNames
from resjax.data.sources import open_source

TEXTS = ["the depth of a layer", "naïve 日本\nzwei", "", "x [1] {2}"]
RECORDS = [{"url": f"http://x/{i}", "text": text} for i, text in enumerate(TEXTS)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
_SETTING = "config.data.corpora.mine"


def opened(path, **options):
  return open_source(SettingNames.of_corpus("mine"), CorpusConfig(str(path), **options))


def texts(path, **options):
  return [document.text for document in opened(path, **options).documents()]


def refused(path, **options):
  with pytest.raises(ValueError, match=re.escape(_SETTING)) as caught:
    texts(path, **options)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def table(values):
  file = io.BytesIO()
  pq.write_table(pa.table({"text": values}), file)
  return file.getvalue()


def arrow(codec):
  return lambda content: pa.compress(content, codec=codec, asbytes=True)


FORMS = {
  "lines": LINES,
  "lines of Windows": LINES.replace("\n", "\r\n"),
  "lines of old Macs": LINES.replace("\n", "\r"),
  "blank lines": "\n \n" + LINES.replace("\n", "\n\n"),
  "no last line break": LINES.strip(),
  "array": json.dumps(RECORDS),
  "array of several lines": json.dumps(RECORDS, indent=2),
  "an array in each line": "".join(json.dumps([record]) + "\n" for record in RECORDS) + "[]",
  "objects of several lines": "\n".join(json.dumps(record, indent=2) for record in RECORDS),
  "joined files": "\ufeff" + "\ufeff".join(json.dumps(record) + "\n" for record in RECORDS),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["c4-train.00000-of-01024.json", "a.jsonl", "a.txt", "no_ending"])
def test_json_is_json_under_any_name(tmp_path, form, name):
  (tmp_path / name).write_text(FORMS[form], encoding="utf-8", newline="")
  assert texts(tmp_path) == texts(tmp_path / name) == TEXTS
  assert texts(tmp_path / name, format="text")[0].startswith(FORMS[form][:9].lstrip("\ufeff"))


PACKED = {
  "gz": gzip.compress,
  "bz2": bz2.compress,
  "xz": lzma.compress,
  "zst": arrow("zstd"),
  "lz4": arrow("lz4"),
}


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json.{}", "a.{}", "a.txt.{}", "a"])
def test_compression_is_found_under_any_name(tmp_path, ending, name):
  pack = PACKED[ending]
  half = len(LINES.encode()) // 2
  packed = pack(LINES.encode()[:half]) + pack(LINES.encode()[half:])  # as `cat a.gz b.gz` does
  if ending == "lz4":
    packed = pack(LINES.encode())
  (tmp_path / name.format(ending)).write_bytes(packed)
  assert texts(tmp_path) == TEXTS
  (tmp_path / name.format(ending)).write_bytes(pack("dépth\r\n".encode()))
  assert texts(tmp_path, format="text") == ["dépth\r\n"]


def test_frames_that_zstd_skips_may_come_first(tmp_path):
  skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
  (tmp_path / "00.jsonl.zst").write_bytes(skipped + PACKED["zst"](LINES.encode()))
  assert texts(tmp_path) == TEXTS


@pytest.mark.parametrize("ending", PACKED)
def test_damaged_compressed_files_are_one_line(tmp_path, ending):
  path = tmp_path / f"a.jsonl.{ending}"
  whole = PACKED[ending](LINES.encode() * 100)
  for content in (whole[:-1], whole[: len(whole) // 2], b"\xff" * 99):
    path.write_bytes(content)
    with pytest.raises(
      ValueError, match=rf"a\.jsonl\.{ending} is a damaged \w+ file: .*replace it"
    ):
      texts(path)
  path.write_text(LINES)  # some browsers decompress what they load, and keep the name
  assert texts(path) == TEXTS


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-16-le"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.txt.gz"])
def test_byte_order_marks_say_the_encoding_and_zeros_do_without_one(tmp_path, encoding, name):
  def write(text):
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    content = mark + text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)

  write(LINES * 500)
  assert texts(tmp_path) == TEXTS * 500
  write("of depth: dépth 日本\r\n" * 3000)
  assert "".join(texts(tmp_path, format="text")) == "of depth: dépth 日本\r\n" * 3000


def test_text_that_ends_within_a_character_is_undecodable(tmp_path):
  (tmp_path / "a.txt").write_bytes("depth".encode("utf-16")[:-1])
  assert texts(tmp_path) == [None]


def test_parquet_is_parquet_under_any_name(tmp_path):
  for name in ("a.parquet", "b.jsonl", "c", "d.txt"):
    (tmp_path / name).write_bytes(table(TEXTS))
  (tmp_path / "README.md").write_text("of the data")
  (tmp_path / "dataset_infos.json").write_text(json.dumps({"default": {"features": {}}}))
  assert texts(tmp_path) == TEXTS * 4
  assert list(opened(tmp_path).look().left_out) == [
    ("README.md", "other format"),
    ("dataset_infos.json", "other format"),
  ]
  (tmp_path / "b.jsonl").write_text(LINES)
  assert "holds jsonl (b.jsonl) and parquet (a.parquet); choose with" in refused(tmp_path)
  assert texts(tmp_path, format="jsonl") == TEXTS
  (tmp_path / "e.parquet.gz").write_bytes(gzip.compress(table(TEXTS)))
  with pytest.raises(ValueError, match=r"e\.parquet\.gz is Parquet inside of a gzip file"):
    texts(tmp_path, format="parquet")


def test_beside_json_other_files_are_left_out_by_name(tmp_path):
  (tmp_path / "a.json").write_text(LINES)
  (tmp_path / "b.json").write_text(json.dumps(RECORDS[1], indent=2))  # one document in a file
  (tmp_path / "info.json").write_text('{"version": 1}')
  (tmp_path / "c.jsonl").write_text("")
  (tmp_path / "LICENSE").write_text("text")
  source = opened(tmp_path)
  assert [document.text for document in source.documents()] == [*TEXTS, TEXTS[1]]
  assert source.look().form == "jsonl" and list(source.look().left_out) == [
    ("LICENSE", "other format"),
    ("c.jsonl", "empty"),
    ("info.json", "other format"),
  ]


def test_text_with_json_that_is_no_text_is_refused(tmp_path):
  (tmp_path / "main.py").write_text("print(1)")
  (tmp_path / "package.json").write_text('{"name": "x", "deps": []}')
  said = refused(tmp_path)
  assert "holds text (main.py) and json (package.json) without a field 'text'" in said
  assert f"set {_SETTING}.format=text" in said
  assert texts(tmp_path, format="text") == ["print(1)", '{"name": "x", "deps": []}']


@pytest.mark.parametrize(
  ("content", "words"),
  [
    ({"name": "x", "n": 1}, "a.json:1 has no field 'text'; it has ['n', 'name']; set {}.field, or"),
    ({"data": [{"text": "x"}]}, "or write the objects in 'data' into a file, one in each line"),
    ([{"body": "x"}, {"body": "y"}], "a.json:1[0] has no field 'text'; it has ['body']"),
    (["x", "y"], "a.json:1[0] is not a JSON object but a str"),
    ({"text": ["x"]}, "a.json:1: 'text' is a list, not text; set {}.field"),
    ("x", "a.json:1 is not a JSON object but a str"),
  ],
)
def test_json_without_text_names_its_keys(tmp_path, content, words):
  (tmp_path / "a.json").write_text(json.dumps(content))
  with pytest.raises(ValueError, match=re.escape(words.format(_SETTING))):
    texts(tmp_path)


@pytest.mark.parametrize(
  "text",
  [
    "[link](https://x) and {braces}",
    "[1] a footnote",
    "{\\rtf1 rich text}",
    '{"a": 1}\n\nwhat stands behind the front matter',
    "[section]\nkey = value",
    "{'a': 1}",
    "[" * 5000,
    "x, y\n1, 2",
  ],
)
def test_text_that_only_begins_like_json_is_text(tmp_path, text):
  (tmp_path / "a.md").write_text(text)
  assert texts(tmp_path) == [text]


def test_an_archive_is_no_text(tmp_path):
  (tmp_path / "b.txt").write_text("depth " * 200)
  with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
    archive.add(tmp_path / "b.txt", "b.txt")
  assert texts(tmp_path) == [None, "depth " * 200]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_values_may_be_cut_anywhere_while_they_are_read(monkeypatch, chunk):
  monkeypatch.setattr(json_text, "_CHUNK", chunk)
  values = [{"text": 'é\\"\u2028😀\n', "n": [1.5e3, -2, True, None, {}]}, {"text": "", "k": "["}]
  for text in (json.dumps(values), "\n".join(map(json.dumps, values)), "  \n\n"):
    found = [value for _, value in readers.objects(io.BytesIO(text.encode()), "x")]
    assert found == (values if text.strip() else [])
  for wrong in ('{"text": "x}', '{"text": "x"', "[{}", "[{} {}]", '{"text": tru}', '{"a": 1e}'):
    with pytest.raises(json_text.NotJsonError, match=r"^x:1"):
      list(readers.objects(io.BytesIO(wrong.encode()), "x"))


def test_places_are_lines_and_numbers(tmp_path):
  (tmp_path / "a.json").write_text('[\n{"text": "x"},\n{"text": "y"}]\n{"text": "z"}\n')
  ids = [document.id for document in opened(tmp_path).documents()]
  assert ids == ["a.json:2[0]", "a.json:3[1]", "a.json:4"]


def test_memory_for_an_array_is_bounded(tmp_path):
  """An array of 60 MB in one line takes as little as its longest value."""
  one = json.dumps({"text": "x" * (1 << 20)})
  with gzip.open(tmp_path / "a.json.gz", "wt", compresslevel=1) as file:
    file.write("[" + ", ".join([one] * 60) + "]")
  tracemalloc.start()
  assert sum(len(text) for text in texts(tmp_path)) == 60 << 20
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 64 << 20 and sum(1 for _ in opened(tmp_path).documents()) == 60
