"""What --text names: conventions, splits, domains, documents that a hash holds out."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resjax.data import text_digest
from resjax.study.evaluation import corpora


def texts(item, **options):
  (corpus,) = corpora.parse([item], **options)
  return [text.original for text in corpus.texts()]


def refused(items, *words):
  with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
    for corpus in corpora.parse(items):
      list(corpus.texts())
  assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def parquet(path, rows, column="text"):
  path.parent.mkdir(parents=True, exist_ok=True)
  pq.write_table(pa.table({column: rows}), path)


def jsonl(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))


@pytest.fixture
def hub(tmp_path):
  """A folder as the hub has them: shards of three splits."""
  for split in ("train", "validation", "test"):
    for shard in range(2):
      parquet(tmp_path / f"{split}-0000{shard}-of-00002.parquet", [f"{split} {shard}"])
  return tmp_path


def test_splits_of_files(hub, tmp_path):
  assert texts(f"a={hub}@test") == ["test 0", "test 1"]
  assert texts(f"a={hub}@validation") == ["validation 0", "validation 1"]
  refused([f"a={hub}"], "train, validation, test", "@")
  refused([f"a={hub}@dev"], "no split 'dev'", "train-00000")
  one = hub / "test-00000-of-00002.parquet"
  assert texts(f"a={one}") == ["test 0"]
  jsonl(tmp_path / "c4" / "c4-validation.00000-of-00008.jsonl", ["x"])
  jsonl(tmp_path / "c4" / "c4-train.00000-of-00008.jsonl", ["y"])
  assert texts(f"a={tmp_path / 'c4'}@validation") == ["x"]
  jsonl(tmp_path / "folders" / "val" / "0.jsonl", ["of a folder"])
  jsonl(tmp_path / "folders" / "train" / "0.jsonl", ["of another"])
  assert texts(f"a={tmp_path / 'folders'}@val") == ["of a folder"]


def test_files_of_text_may_be_called_anything(tmp_path):
  for name in ("train.md", "test.md"):
    (tmp_path / name).write_text(f"{name} is about {name}\n")
  assert len(texts(f"a={tmp_path}")) == 2
  for name in ("wiki.train.raw", "wiki.test.raw"):
    (tmp_path / "raw").mkdir(exist_ok=True)
    (tmp_path / "raw" / name).write_text(f" = {name} = \n")
  assert texts(f"wikitext={tmp_path / 'raw'}") == [" = wiki.test.raw = "]


def test_conventions_follow_from_names_or_prefixes(hub):
  named, prefixed, plain = corpora.parse(
    [f"wikitext={hub}", f"b=wikitext:{hub}@validation", f"c={hub}@test"]
  )
  assert [one.convention for one in (named, prefixed, plain)] == ["wikitext"] * 2 + ["documents"]
  assert [text.original for text in prefixed.texts()] == ["validation 0\nvalidation 1"]
  assert [one.group for one in (named, prefixed, plain)] == ["", "", corpora.MACRO]


def test_wikitext_by_page_and_by_line(tmp_path):
  page = ' = One = \n \n it is " good " @-@ ish . \n'
  parquet(tmp_path / "pages" / "test-0.parquet", [page], "page")
  (by_page,) = corpora.parse([f"wikitext={tmp_path / 'pages'}"])
  (text,) = by_page.texts()
  assert text.original == page and '"good"-ish.\n' in text.given
  lines = [" = One = \n", "", ' it is " good " @-@ ish . \n', " = Two = \n", " x \n"]
  parquet(tmp_path / "lines" / "test-0.parquet", lines)
  (tmp_path / "wiki.test.raw").write_text("".join(line or " \n" for line in lines))
  for place in ("lines", "wiki.test.raw"):
    (by_line,) = corpora.parse([f"wikitext={tmp_path / place}"])
    assert [one.original for one in by_line.texts()] == [page.removesuffix("\n"), " = Two = \n x "]
    (guide,) = corpora.parse([f"wikitext_guide={tmp_path / place}"])
    (stream,) = guide.texts()
    assert stream.given == "\n\n".join(lines)


def test_lines_of_wikitext_end_at_newlines_alone(tmp_path):
  page = " = One = \n a\u2028b \x0c c\x85 \r d "
  (tmp_path / "wiki.test.raw").write_text(page + "\n", newline="")
  assert texts(f"wikitext_guide={tmp_path}") == [page.replace("\n", "\n\n\n") + "\n"]
  (corpus,) = corpora.parse([f"wikitext={tmp_path}"])
  assert [text.original for text in corpus.texts()] == [page]


def test_documents_that_are_no_unicode_are_told(tmp_path, caplog):
  (tmp_path / "a.txt").write_bytes(b"caf\xe9")
  refused([f"own={tmp_path}"], "own=", "holds no UTF-8 text")
  (tmp_path / "b.txt").write_text("good")
  with caplog.at_level("WARNING"):
    assert texts(f"own={tmp_path}") == ["good"]
  assert "--text=own: 1 documents are no UTF-8 text and left out" in caplog.text


def test_lambada(tmp_path):
  parquet(tmp_path / "test-0.parquet", ["he said yes ", "they went home\n"])
  assert texts(f"lambada_openai={tmp_path}") == ["he said yes ", "they went home\n"]
  (standard,) = corpora.parse([f"lambada_standard={tmp_path}"])
  assert [text.given for text in standard.texts()] == ["he said yes", "they went home"]
  parquet(tmp_path / "tfds.parquet", ["a passage \n"], "passage")
  (of_tfds,) = corpora.parse([f"lambada_standard={tmp_path / 'tfds.parquet'}"])
  assert [text.given for text in of_tfds.texts()] == ["a passage"]
  refused([f"lambada={tmp_path}"], "two LAMBADAs", "lambada_openai", "lambada_standard")


def test_documents_held_out_by_hash(tmp_path):
  rows = [f"document {number}" for number in range(200)]
  jsonl(tmp_path / "a.jsonl", rows)
  places = {row: text_digest.place_of(text_digest.digest_of(row)) for row in rows}
  found = texts(f"a={tmp_path}/a.jsonl@hash:0.02-0.5")
  assert found == [row for row in rows if 0.02 <= places[row] < 0.5] and 60 < len(found) < 140
  parts = [texts(f"a={tmp_path}/a.jsonl@hash:{edges}") for edges in ("0-0.3", "0.3-1")]
  assert sorted(parts[0] + parts[1]) == sorted(rows)
  for edges in ("1-0", "0-2", "0.1-0.1", "1.2.3-2"):
    refused([f"a={tmp_path}/a.jsonl@hash:{edges}"], "0 <= A < B <= 1")


def test_domains_are_files_and_folders(tmp_path):
  parquet(tmp_path / "arxiv-00000-of-00002.parquet", ["a"], "content")
  parquet(tmp_path / "arxiv-00001-of-00002.parquet", ["b"], "content")
  jsonl(tmp_path / "code.jsonl", ["c"])
  jsonl(tmp_path / "web" / "val" / "x.jsonl", ["d"])
  jsonl(tmp_path / "web" / "val" / "y.jsonl", ["e"])
  found = corpora.parse([f"p=domains:{tmp_path}"])
  assert [one.name for one in found] == ["p/arxiv", "p/code", "p/web"]
  assert {one.group for one in found} == {"p"}
  assert [[text.original for text in one.texts()] for one in found] == [
    ["a", "b"], ["c"], ["d", "e"]
  ]  # fmt: skip
  refused([f"p=domains:{tmp_path / 'code.jsonl'}"], "files or folders in a folder")
  jsonl(tmp_path / "code" / "z.jsonl", ["f"])
  refused([f"p=domains:{tmp_path}"], "one more domain 'code'")


def test_wiki40b_marks_become_newlines(tmp_path):
  article = "\n_START_ARTICLE_\nTitle\n_START_PARAGRAPH_\nOne._NEWLINE_Two."
  jsonl(tmp_path / "a.jsonl", [article])
  (corpus,) = corpora.parse([f"a=wiki40b:{tmp_path}/a.jsonl"])
  assert list(corpus.texts()) == [corpora.Text("a.jsonl:1", article, "Title\nOne.\nTwo.")]


def test_mistakes(tmp_path):
  (tmp_path / "a.txt").write_text("some text\n")
  (tmp_path / "empty.jsonl").write_text("")
  for item in ("a", "=x", "a b=x", "a=", f"{corpora.MACRO}={tmp_path}"):
    refused([item], "NAME=[CONVENTION:]SOURCE[@SPLIT]")
  refused([f"a={tmp_path}/a.txt", f"a={tmp_path}/a.txt"], "'a' 2 times")
  refused([f"a={tmp_path}/nowhere"], "--text=a", "nowhere")
  refused([f"a={tmp_path}/empty.jsonl"], "holds no text")
  refused(["a=python-stdlib@test"], "has no split")
  refused([f"a=llmc:{tmp_path}"], "one file of tokens", "names 2 files")
