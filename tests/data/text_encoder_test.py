"""No text becomes a control token, whatever kind of tokenizer it meets, and it stays the text."""

import json
import unicodedata

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from resjax.data import tokenizer
from resjax.data.pretrained_tokenizer import PretrainedTokenizer, load_pretrained
from resjax.data.text_encoder import TextEncoder
from tests.helpers import tokenizer_kinds

# What these kinds make of a text is decoded to the text itself; others lower it or lose letters.
LOSSLESS = "bpe", "bpe_unflagged", "smollm", "llama3", "llama2", "gemma", "byte_fallback"


def hostile(spellings):
  """Texts around the spelling of a special token: whole, in parts, in other letters, doubled."""
  wide = [word.translate({c: c + 0xFEE0 for c in range(0x21, 0x7F)}) for word in spellings]
  some = []
  for word in [*spellings, *wide]:
    some += [word, f"a {word} b", f"{word}{word}", f" {word} ", f"\n{word}\n", f"x{word}y"]
    some += [word.upper(), word[:-1], word[1:], f"{word[:2]}{word}{word[2:]}", f"{word}{word[:3]}"]
    some += [word[:2] + "\u200b" + word[2:], f"\ufeff{word}", f"\u00ad{word}"]
  return some


@pytest.fixture(scope="module", params=sorted(tokenizer_kinds.KINDS))
def kind(request, tmp_path_factory):
  folder = tokenizer_kinds.folder(tmp_path_factory.mktemp("kind"), request.param)
  return request.param, load_pretrained(folder)


def test_no_control_token_comes_out_of_a_text(kind):
  name, words = kind
  added = words.model.get_added_tokens_decoder().values()
  spellings = [token.content for token in added]
  assert set(words.end_ids) <= words.control and len(spellings) <= len(words.control) + 1
  texts = hostile(spellings)
  assert any(unicodedata.normalize("NFKC", text) in spellings for text in texts[len(texts) // 2 :])
  for text, ids in zip(texts, words.encode_batch(texts), strict=True):
    assert ids.dtype == np.int32 and not words.control & set(ids.tolist()), text
    if name in LOSSLESS:
      assert words.decode(ids).lstrip(" ") == text.lstrip(" ")


def test_texts_without_such_a_spelling_keep_their_tokens(kind):
  words = kind[1]
  texts = ["the end é", " two  spaces\n", "A1 <b> [x] |y|", "日本 \u00a0ﬁ"]
  for text, ids in zip(texts, words.encode_batch(texts), strict=True):
    assert ids.tolist() == words.model.encode(text, add_special_tokens=False).ids


def made(model, *added, pre=None, normalizer=None):
  whole = tokenizers.Tokenizer(model)
  if pre is not None:
    whole.pre_tokenizer = pre
  if normalizer is not None:
    whole.normalizer = normalizer
  whole.add_tokens(list(added))
  return whole


def letters(*first):
  words = [*first, *sorted(pre_tokenizers.ByteLevel.alphabet())]
  return {word: i for i, word in enumerate(words)}


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def test_words_in_one_piece():
  parts = ["[UNK]", "[SEP]", "a", "[", "##S", "##E", "##P", "##]"]
  model = models.WordPiece({part: i for i, part in enumerate(parts)}, unk_token="[UNK]")
  words = made(model, pre=pre_tokenizers.WhitespaceSplit())
  text = "a [SEP] a"
  assert words.encode(text).ids == [2, 1, 2]
  assert TextEncoder(words.to_str(), [1]).encode_batch([text])[0].tolist() == [2, 3, 4, 5, 6, 7, 2]


def test_pieces_of_unigram(tmp_path):
  words = load_pretrained(tokenizer_kinds.folder(tmp_path, "unigram"))
  spelled = [words.model.id_to_token(i) for i in words.encode_batch(["the</s>end"])[0]]
  assert spelled == ["▁the", "<", "/", "s", ">", "e", "n", "d"]


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_merges_that_make_the_end(ignore_merges):
  vocabulary = letters("</s>")
  vocabulary |= {"</": 257, "s>": 258, "</s>!": 259, ">!": 260}
  merges = [("<", "/"), ("s", ">"), ("</", "s>"), ("</s>", "!")]
  model = models.BPE(vocabulary, merges, ignore_merges=ignore_merges)
  words = made(model, "  ", pre=BYTES)
  assert words.encode("a</s>").ids[-1] == 0 and words.encode("  ").ids == [261]
  encoder = TextEncoder(words.to_str(), [0])
  whole, longer, spaces = encoder.encode_batch(["</s>", "x</s>!", "  "])
  assert whole.tolist() == [257, 258] and spaces.tolist() == [261]
  assert longer.tolist() == [vocabulary["x"], 257, 258, vocabulary["!"]]


def test_added_tokens_that_take_spaces_or_are_normalised():
  end = AddedToken("</s>", lstrip=True, rstrip=True, normalized=True)
  words = made(models.BPE(letters("</s>"), []), end, pre=BYTES, normalizer=normalizers.NFKC())
  assert words.encode("a ＜/s＞ b").ids == [words.token_to_id("a"), 0, words.token_to_id("b")]
  ids = TextEncoder(words.to_str(), [0]).encode_batch(["a ＜/s＞ b"])[0]
  assert [words.id_to_token(i) for i in ids] == list("aĠ</s>Ġb")


def test_unknown_words_are_left_out_where_their_token_ends_texts():
  words = made(models.WordLevel({"</s>": 0, "a": 1}, unk_token="</s>"))
  words.pre_tokenizer = pre_tokenizers.Whitespace()
  assert words.encode("a b a").ids == [1, 0, 1]
  assert TextEncoder(words.to_str(), [0]).encode_batch(["a b a"])[0].tolist() == [1, 1]
  apart = made(models.WordLevel({"?": 0, "a": 1, "</s>": 2}, unk_token="?"))
  apart.pre_tokenizer = pre_tokenizers.Whitespace()
  apart.add_special_tokens(["?"])
  assert TextEncoder(apart.to_str(), [2]).encode_batch(["a b a"])[0].tolist() == [1, 0, 1]


def test_the_only_token_of_a_character_is_text():
  vocabulary = letters("</s>")
  encoder = TextEncoder(made(models.BPE(vocabulary, []), pre=BYTES).to_str(), [0, vocabulary["Ċ"]])
  assert encoder.control == {0}
  assert encoder.encode_batch(["a\n"])[0].tolist() == [vocabulary["a"], vocabulary["Ċ"]]


def test_files_beside_the_model_name_special_tokens():
  words = made(
    models.BPE(letters("<unk>"), [], unk_token="<unk>"), "<pad>", "<x>", "<y>", pre=BYTES
  )
  settings = {"pad_token": {"content": "<pad>"}, "unk_token": "<unk>"}
  settings |= {"added_tokens_decoder": {"258": {"content": "<x>", "special": True}}}
  files = {"tokenizer.json": words.to_str(), "tokenizer_config.json": json.dumps(settings)}
  files["special_tokens_map.json"] = json.dumps({"additional_special_tokens": ["<y>"]})
  found = PretrainedTokenizer(files, 300, {"bos_token_id": 0})
  text = "<pad><x><y>"
  assert words.encode(text).ids == [257, 258, 259]
  assert found.control == {0, 257, 258, 259}
  assert not found.token_bytes()[[0, 257, 258, 259]].any()
  assert found.encode_batch([text])[0].tolist() == [words.token_to_id(c) for c in text]


def test_learned_tokens_are_kept_out_too(tmp_path):
  learned = tokenizer.train_bpe(["a<|endoftext|>b"] * 50, 300)
  content = json.loads(learned.model.to_str())
  content["added_tokens"][0]["special"] = False
  (tmp_path / "tokenizer.json").write_text(json.dumps(content))
  again = tokenizer.load(tmp_path / "tokenizer.json")
  for words in (learned, again):
    ids = words.encode_batch(["a<|endoftext|>b"])[0]
    assert words.eot_id not in ids and words.decode(ids) == "a<|endoftext|>b"
