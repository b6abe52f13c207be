"""What stands around documents, which of it is a target, and the bytes that rows count."""

import dataclasses
import json
import types

import numpy as np
import pytest
import tokenizers

from resjax.base.typing import NOT_ASKED
from resjax.data import dataset, pipeline, prefix, storage, tokenizer
from resjax.data.config import TokenizerConfig
from resjax.data.documents import tokens_around, with_documents
from resjax.data.packing import RowCutter
from resjax.data.pretrained_tokenizer import load_pretrained, record_before
from resjax.data.special_tokens import Around
from resjax.interop.huggingface.tokenizer_files import special_ids
from resjax.study.evaluation.conventions import STREAM
from resjax.study.evaluation.units import Cut, units
from tests.data.conftest import write_folder
from tests.helpers import tokenizer_kinds

AUTO = {
  "bpe": ((258,), ()),
  "bpe_unflagged": ((259,), ()),
  "smollm": ((2,), ()),
  "qwen": ((260,), ()),
  "llama3": ((258,), (259,)),
  "pythia": ((0,), ()),
  "llama2": ((1,), (2,)),
  "llama2_with_end": ((1,), (2,)),
  "gemma": ((2,), (1,)),
  "byte_fallback": ((2,), ()),
  "unigram": ((1,), ()),
  "nfkc": ((1,), (2,)),
  "wordpiece": ((2,), (3,)),
}
TEXTS = [
  "the end é",
  "full ｗｉｄｅ ＜/s＞ ㎏ ﬁ",
  "  spaces  \n\n and tabs\t ",
  "\ufeffbom 日本 😀 İ",
  "</s><s><|im_end|>[SEP]",
  "\u200b",
  "e\u0301",
  "UPPER lower",
]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
  place = tmp_path_factory.mktemp("kinds")
  return {name: tokenizer_kinds.folder(place, name) for name in tokenizer_kinds.KINDS}


@pytest.mark.parametrize("name", sorted(AUTO))
def test_by_the_rules_of_the_tokenizer_its_end_is_a_target(kinds, name):
  words = load_pretrained(kinds[name])
  assert tokens_around(words, "auto") == Around(*AUTO[name])


def test_other_rules(kinds):
  words = load_pretrained(kinds["smollm"])
  assert tokens_around(words, "bos") == Around((1,))
  assert tokens_around(words, "eos") == Around((2,))
  assert tokens_around(words, "bos_eos") == Around((1,), (2,))
  assert tokens_around(words, "") is None and words.documents == Around((1,))
  assert tokens_around(load_pretrained(kinds["bpe"]), "bos_eos") == Around((258,))
  with pytest.raises(ValueError, match=r"documents is 'bos_eos', and .* no token that begins"):
    tokens_around(load_pretrained(kinds["unigram"]), "bos_eos")


@pytest.mark.parametrize(
  ("config", "around"),
  [
    ({"eos_token_id": [10**5, 2]}, Around((1,), (2,))),
    ({"eos_token_id": -1}, Around((1,))),
    ({"bos_token_id": 10**5}, Around((1,), (2,))),
  ],
)
def test_what_has_no_row_is_no_token(tmp_path, config, around):
  folder = tokenizer_kinds.folder(tmp_path, "llama2")
  (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
  whole = json.loads((folder / "config.json").read_text()) | config
  (folder / "config.json").write_text(json.dumps(whole))
  words = load_pretrained(folder)
  assert tokens_around(words, "auto") == around
  assert tokens_around(words, "bos") == Around((1,))


def test_texts_end_at_what_stood_behind_documents(tmp_path):
  folder = tokenizer_kinds.folder(tmp_path, "wordpiece")
  (folder / "tokenizer_config.json").write_text(json.dumps({"sep_token": "[SEP]"}))
  whole = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps(whole | {"eos_token_id": None}))
  words = load_pretrained(folder)
  assert words.end_ids == (2,)
  tuned = with_documents(words, "auto", "text")
  assert tuned.documents == Around((2,), (3,))
  assert tuned.end_ids == (2, 3) and tuned.eot_id == 2
  assert special_ids(tuned)["eos_token_id"] == 3
  tuned.save(tmp_path / "words.json")
  assert tokenizer.load(tmp_path / "words.json").end_ids == (2, 3)


def test_a_token_of_texts_cannot_end_them(kinds, tmp_path):
  folder = tokenizer_kinds.folder(tmp_path, "bpe")
  config = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": 198}))
  with pytest.raises(ValueError, match="puts token 198 around documents; but that is the only one"):
    tokens_around(load_pretrained(folder), "bos")


@pytest.mark.parametrize("name", sorted(tokenizer_kinds.KINDS))
@pytest.mark.parametrize("seq_len", [5, 64])
def test_rows_have_the_bytes_of_the_texts(kinds, name, seq_len):
  words = with_documents(load_pretrained(kinds[name]), "auto", "text")
  cutter = RowCutter(seq_len, words.documents)
  encoded = words.encode_with_bytes(TEXTS)
  for text, (ids, sizes) in zip(TEXTS, encoded, strict=True):
    np.testing.assert_array_equal(ids, words.encode_batch([text])[0])
    assert len(sizes) == len(ids) + 1 and (sizes >= 0).all()
    assert sizes.sum() == len(text.encode()), text
  cutter.push(*zip(*encoded, strict=True))
  sizes = cutter.bytes.sum()
  cutter.finish()
  assert sizes + cutter.bytes.sum() == sum(len(text.encode()) for text in TEXTS)


def test_a_token_has_the_bytes_that_it_was_made_of(kinds):
  words = load_pretrained(kinds["nfkc"])
  (ids, sizes), (plain, plain_sizes) = words.encode_with_bytes(["ｗ ㎏a", "w a"])
  assert [words.model.id_to_token(i) for i in ids] == ["▁", "w", "▁", "k", "g", "a"]
  assert sizes.tolist() == [3, 0, 1, 3, 0, 1, 0]  # what Metaspace puts in front is of the first
  assert plain_sizes.tolist() == [0, 1, 1, 1, 0] and len(plain) == 4


def built(tmp_path, folder, texts, **changes):
  source = write_folder(tmp_path / "text", texts)
  settings = TokenizerConfig("pretrained", load_pretrained(folder).vocab_size, folder=str(folder))
  from resjax.data.config import DataConfig

  return DataConfig(
    root=str(tmp_path / "root"),
    seq_len=16,
    corpora={"a": {"source": str(source)}},
    tokenizer=dataclasses.replace(settings, **changes),
    validation_fraction=0.0,
    test_fraction=0.0,
  )


def batches_of(summary):
  return list(pipeline.evaluation_batches(summary, "train", batch_size=2))


def test_built_rows_end_documents_and_count_their_bytes(kinds, tmp_path):
  texts = [f"the end {word}" for word in ("ａｂｃ", "d", "e</s>f", "g\n")]
  summary = dataset.build(built(tmp_path, kinds["llama2"], texts))
  assert tokenizer.load(summary.tokenizer).documents == Around((1,), (2,))
  batches = batches_of(summary)
  targets = np.concatenate([b["targets"][b["segment_ids"] > 0] for b in batches])
  assert (targets == 2).sum() == len(texts) and (targets == 1).sum() == 0
  assert (targets == NOT_ASKED).sum() == len(texts) - 1
  assert sum(b["bytes"].sum() for b in batches) == sum(len(text.encode()) for text in texts)
  assert summary.corpora["a"].splits["train"].bytes == sum(len(text.encode()) for text in texts)


def test_rows_of_earlier_releases_stay_what_they_are(kinds, tmp_path):
  config = built(tmp_path, kinds["nfkc"], ["the ａｂｃ", "the end"], documents="")
  summary = dataset.build(config)
  words = load_pretrained(kinds["nfkc"])
  assert summary.tokenizer.parent.name.endswith(
    storage.fingerprint(record_before(words, kinds["nfkc"]), 1)
  )
  rows = storage.read(summary.corpora["a"].rows, "train")
  assert set(rows[0]) == {"tokens"} and rows[0]["tokens"].max() < words.vocab_size
  (batch,) = batches_of(summary)
  asked = batch["targets"][batch["segment_ids"] > 0]
  assert (asked == 1).sum() == 2 and (asked == 2).sum() == 0  # <s> separates them
  assert batch["bytes"].sum() == words.token_bytes()[asked].sum()
  assert dataset.build(dataclasses.replace(config)).fingerprint == summary.fingerprint


MARKUP = "<|im_start|>user\nHi<|im_end|>\n"


def test_markup_becomes_its_own_tokens(kinds):
  words = load_pretrained(kinds["smollm"])
  theirs = tokenizers.Tokenizer.from_str(words.files["tokenizer.json"])
  wanted = theirs.encode(MARKUP, add_special_tokens=False).ids
  text, tokens, all_of_it = (
    with_documents(words, "auto", markup) for markup in ("text", "tokens", "with_ends")
  )
  assert all_of_it.encode_batch([MARKUP])[0].tolist() == wanted
  assert not {1, 2} & set(text.encode_batch([MARKUP])[0].tolist())
  some = tokens.encode_batch([MARKUP])[0].tolist()
  assert some[0] == 1 and 2 not in some and tokens.decode(some) == MARKUP
  ((_, sizes),) = all_of_it.encode_with_bytes([MARKUP])
  assert sizes.sum() == len(MARKUP) and sizes[0] == len("<|im_start|>")
  again = type(words).from_record(_record(all_of_it))
  assert again.encode_batch([MARKUP])[0].tolist() == wanted


def _record(words):
  from resjax.base import typed_json
  from resjax.data.pretrained_tokenizer import PretrainedRecord

  return typed_json.parse(words.record, PretrainedRecord, "record")


def test_the_end_inside_a_document_does_not_cut_it(kinds, tmp_path):
  config = built(tmp_path, kinds["smollm"], [MARKUP * 2, "ab"], markup="with_ends")
  batches = batches_of(dataset.build(config))
  starts = sum(int((b["positions"] == 0).sum() - (b["segment_ids"] == 0).sum()) for b in batches)
  rows = sum(int(b["segment_ids"].any(axis=1).sum()) for b in batches)
  targets = np.concatenate([b["targets"][b["segment_ids"] > 0] for b in batches])
  assert (targets == 2).sum() == 2 + 2 and starts <= rows + 2


def test_markup_needs_a_pretrained_tokenizer():
  with pytest.raises(ValueError, match=r"tokenizer\.markup is 'tokens'; only a pretrained"):
    TokenizerConfig("byte", markup="tokens")
  with pytest.raises(ValueError, match=r"tokenizer\.documents is 'both'; allowed: auto, bos"):
    TokenizerConfig(documents="both")


def test_windows_of_a_stream_have_the_bytes_of_its_text(kinds):
  words, text = load_pretrained(kinds["nfkc"]), "\uff41\uff42\uff43 the end \uff44\uff45"
  corpus = types.SimpleNamespace(rule=types.SimpleNamespace(kind=STREAM), name="a")
  given = [types.SimpleNamespace(given=text)]
  found = list(units(corpus, given, words, Cut(4, 4, prefix.before_contexts(words, "always"))))
  # The first token of every window is not scored; that of the text is "▁", with the first letter.
  ((ids, sizes),) = words.encode_with_bytes([text])
  scored = [i for i in range(len(ids)) if (i + 1) % 4]
  assert [unit.bytes for unit in found] and sum(u.bytes for u in found) == sizes[scored].sum()
