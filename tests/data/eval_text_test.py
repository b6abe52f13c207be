"""The text to measure on has the first tokens of the stream of training, the same every time."""

import numpy as np
import pytest

from resjax.base.typing import NOT_ASKED
from resjax.data import dataset
from resjax.data.config import CorpusConfig, SettingNames
from resjax.data.documents import with_documents
from resjax.data.eval_text import measured_text, texts_of_dataset, texts_of_source
from resjax.data.packing import RowCutter, split_rows
from resjax.data.pretrained_tokenizer import load_pretrained
from resjax.data.special_tokens import Around
from resjax.data.tokenizer import ByteTokenizer
from tests.data.conftest import make_texts, write_folder
from tests.helpers import tokenizer_kinds

SETTINGS = SettingNames("--data", "--data_format", "--data_field")
BYTES = ByteTokenizer()


def measured(texts, max_tokens=10**6, seq_len=16, batch_size=2, **more):
  options = {"seq_len": seq_len, "batch_size": batch_size, "max_tokens": max_tokens}
  return measured_text("mine", iter(texts), BYTES, **options, **more)


def joined(found, name):
  return np.concatenate([batch[name] for batch in found.batches])


def test_all_of_a_text_is_packed_as_in_training():
  texts = make_texts(30)
  found = measured(texts)
  cutter = RowCutter(16, BYTES.documents)
  rows = cutter.push(BYTES.encode_batch(texts)), cutter.finish()
  want = split_rows(np.concatenate(rows))
  assert {batch["inputs"].shape for batch in found.batches} == {(2, 16)}
  assert found.num_tokens == np.sum(joined(found, "segment_ids") != 0) == cutter.num_tokens - 1
  for name, array in want.items():
    got = joined(found, name)
    np.testing.assert_array_equal(got[: len(array)], array)
    assert not got[len(array) :].any()  # The rest is padding.


def test_what_stands_before_a_document_is_no_target_where_training_asks_for_none(tmp_path):
  folder = tokenizer_kinds.folder(tmp_path, "llama2")
  words = with_documents(load_pretrained(folder), "bos_eos", "text")
  texts = ["the end", "e", "the", "the the end"] * 4
  sizes = {"seq_len": 8, "batch_size": 2}
  cutter = RowCutter(8, words.documents)
  want = split_rows(np.concatenate([cutter.push(words.encode_batch(texts)), cutter.finish()]))
  asked = (want["segment_ids"] != 0) & (want["targets"] != NOT_ASKED)
  assert np.sum(want["targets"] == NOT_ASKED) == len(texts) - 1
  for max_tokens in (10**6, 20, 7):
    found = measured_text("mine", iter(texts), words, max_tokens=max_tokens, **sizes)
    targets, used = (joined(found, name) for name in ("targets", "segment_ids"))
    counted = (used != 0) & (targets != NOT_ASKED)
    assert found.num_tokens == counted.sum() == min(max_tokens, asked.sum())
    np.testing.assert_array_equal(targets[counted], want["targets"][asked][:max_tokens])
    assert np.array_equal(targets[:1], want["targets"][:1]) or max_tokens < 8


@pytest.mark.parametrize(
  ("around", "rows"),  # inputs, targets, segments and positions
  [
    (Around(), [("abcd", "bcde", "1111", "0123"), ("eg", "fh", "12", "00")]),
    (
      Around((1,)),
      [
        ("1abc", "abcd", "1111", "0123"),
        ("1ef1", "ef1g", "1112", "0120"),
        ("1h1i", "h1i1", "1122", "0101"),
      ],
    ),
    (
      Around((1,), (2,)),
      [
        ("1abc", "abcd", "1111", "0123"),
        ("1ef1", "ef2g", "1112", "0120"),
        ("1h1i", "h2i2", "1122", "0101"),
      ],
    ),
    (
      Around((1, 3)),
      [
        ("13ab", "3abc", "1111", "0123"),
        ("13de", "3def", "1111", "0123"),
        ("1313", "313g", "1122", "0101"),
        ("13h", "3h1", "111", "012"),
        ("13i", "3i1", "111", "012"),
      ],
    ),
  ],
)
def test_documents_with_what_a_tokenizer_puts_around_them(around, rows):
  found = measured(["abcdef", "gh", "i"], seq_len=4, batch_size=3, around=around)
  assert found.num_tokens == sum(len(targets) for _, targets, _, _ in rows)
  assert all(array.shape == (3, 4) for batch in found.batches for array in batch.values())
  for number, name in enumerate(("inputs", "targets", "segment_ids", "positions")):
    got = joined(found, name)
    for row, want in zip(got, rows, strict=False):
      values = [int(c) if c.isdigit() else ord(c) for c in want[number]]
      np.testing.assert_array_equal(row, np.pad(values, (0, 4 - len(values))))
    assert not got[len(rows) :].any()


@pytest.mark.parametrize("max_tokens", [2, 4, 5, 7])
def test_at_most_so_many_tokens_of_documents(max_tokens):
  options = {"seq_len": 4, "around": Around((1,))}
  found = measured(["abcdef", "gh", "i"], max_tokens, **options)
  assert found.num_tokens == np.sum(joined(found, "segment_ids") != 0) == max_tokens
  whole = measured(["abcdef", "gh", "i"], **options)
  for name in ("inputs", "targets"):
    got, want = joined(found, name).reshape(-1), joined(whole, name).reshape(-1)
    np.testing.assert_array_equal(got[:max_tokens], want[:max_tokens])


@pytest.mark.parametrize("max_tokens", [2, 16, 33])
def test_at_most_so_many_tokens(max_tokens):
  texts = make_texts(30)
  found, whole = measured(texts, max_tokens), measured(texts)
  assert found.num_tokens == np.sum(joined(found, "segment_ids") != 0) == max_tokens
  for name in ("inputs", "targets"):
    got, want = joined(found, name).reshape(-1), joined(whole, name).reshape(-1)
    np.testing.assert_array_equal(got[:max_tokens], want[:max_tokens])


def test_no_more_text_is_read_than_is_needed():
  def endless():
    while True:
      yield "some words " * 1000

  assert measured(endless(), max_tokens=100).num_tokens == 100


@pytest.mark.parametrize("around", [None, Around(), Around((1,))])
@pytest.mark.parametrize(("texts", "words"), [([], "no text"), (["a"], "one token of text")])
def test_too_short(texts, words, around):
  with pytest.raises(ValueError, match=f"mine .*{words}; measuring needs two tokens") as error:
    measured(texts, around=around)
  assert "\n" not in str(error.value)


def test_documents_without_text_are_left_out(tmp_path):
  write_folder(tmp_path, ["one", "  \n", "", "two"])
  (tmp_path / "9.txt").write_bytes(b"\xff")
  assert list(texts_of_source(CorpusConfig(str(tmp_path)), SETTINGS)) == ["one", "two"]


def test_messages_name_the_flags(tmp_path):
  (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
  for source, words in [("nowhere/x", "--data: nowhere/x is no file"), (tmp_path, "--data_field")]:
    with pytest.raises(ValueError, match=words):
      list(texts_of_source(CorpusConfig(str(source)), SETTINGS))


def test_documents_of_a_built_split_in_fixed_order(folder_config):
  texts = make_texts(60)
  config = folder_config({"a": texts[:30], "b": texts[30:]})
  summary = dataset.build(config)
  found = list(texts_of_dataset(config, summary.fingerprint, "validation"))
  count = sum(corpus.splits["validation"].documents for corpus in summary.corpora.values())
  assert len(set(found)) == len(found) == count > 2 and set(found) <= set(texts)
  assert found == list(texts_of_dataset(config, summary.fingerprint, "validation"))
  assert texts_of_dataset(config, "0" * 12, "validation") is None
