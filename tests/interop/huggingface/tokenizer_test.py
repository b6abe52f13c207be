"""The two kinds of tokenizer.json that pretrained models have."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from resjax.data import tokenizer as our_tokenizers
from resjax.interop import huggingface
from tests.helpers import decoders as our_decoders

TEXTS = ["a b", "héé  \n", "日 b a", "<s>a"]


def byte_level():
  """Makes a tokenizer like those of GPT-2, Llama 3 and Qwen: each character spells a byte."""
  letters = sorted(pre_tokenizers.ByteLevel.alphabet())
  model = tokenizers.Tokenizer(
    models.BPE({c: i for i, c in enumerate([*letters, "Ġb"])}, [("Ġ", "b")])
  )
  model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  model.decoder = decoders.ByteLevel()
  model.add_special_tokens(["<s>", "</s>"])
  model.add_tokens(["日本"])
  return model


def sentence_piece():
  """Makes a tokenizer like those of Llama 2 and Gemma, with ▁ for a space and tokens for bytes."""
  words = ["<unk>", "<s>", "</s>", *[f"<0x{i:02X}>" for i in range(256)], "▁", "a", "b", "é", "▁b"]
  model = tokenizers.Tokenizer(
    models.BPE(
      {word: i for i, word in enumerate(words)}, [("▁", "b")], unk_token="<unk>", byte_fallback=True
    )
  )
  model.normalizer = normalizers.Replace(" ", "▁")
  model.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
  )
  model.add_special_tokens(["<s>", "</s>", "<unk>"])
  return model


KINDS = {"byte_level": byte_level, "sentence_piece": sentence_piece}


def write(folder, model, vocab_size, **ids):
  model.enable_truncation(2)
  model.save(str(folder / "tokenizer.json"))
  config = {"vocab_size": vocab_size, "bos_token_id": None, "eos_token_id": None} | ids
  (folder / "config.json").write_text(json.dumps(config))
  (folder / "tokenizer_config.json").write_text('{"add_bos_token":  true}')
  return folder


@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_bytes(kind, tmp_path):
  model = KINDS[kind]()
  begin = model.token_to_id("<s>")
  words = huggingface.tokenizer(write(tmp_path, model, 300, bos_token_id=begin))
  assert (words.vocab_size, words.eot_id) == (300, begin)
  sizes = words.token_bytes()
  assert sizes.shape == (300,) and sizes.dtype == np.int32
  for text, ids in zip(TEXTS, words.encode_batch(TEXTS), strict=True):
    assert begin not in ids
    assert words.decode(ids) == text
    assert sizes[ids].sum() == len(text.encode())
  assert sizes[begin] == sizes[-1] == 0
  if kind == "byte_level":
    assert sizes[model.token_to_id("日本")] == 6


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_in_a_workdir_comes_back(kind, tmp_path):
  words = huggingface.tokenizer(write(tmp_path, KINDS[kind](), 300, eos_token_id=[2, 1]))
  assert words.eot_id == 2
  words.save(tmp_path / "saved" / "tokenizer.json")
  again = our_tokenizers.load(tmp_path / "saved" / "tokenizer.json")
  assert (again.vocab_size, again.eot_id, again.files) == (300, 2, words.files)
  for ours, theirs in zip(words.encode_batch(TEXTS), again.encode_batch(TEXTS), strict=True):
    np.testing.assert_array_equal(ours, theirs)


def test_files_are_copied_verbatim(tmp_path):
  (tmp_path / "in").mkdir()
  folder = write(tmp_path / "in", sentence_piece(), 300, bos_token_id=1, eos_token_id=[2, 5])
  decoder = our_decoders.drawn(our_decoders.config(vocab_size=300))
  words = huggingface.tokenizer(folder)
  huggingface.export(decoder, tmp_path / "out", tokenizer=words)
  for name in ("tokenizer.json", "tokenizer_config.json"):
    assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
  config = json.loads((tmp_path / "out/config.json").read_text())
  assert (config["bos_token_id"], config["eos_token_id"]) == (1, [2, 5])
  assert huggingface.tokenizer(tmp_path / "out").files == words.files


def test_what_says_how_to_go_on_comes_back(tmp_path):
  given = {"eos_token_id": [2, 5], "pad_token_id": 0, "temperature": 0.6, "do_sample": True}
  (tmp_path / "in").mkdir()
  ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 7}
  folder = write(tmp_path / "in", sentence_piece(), 300, **ids)
  (folder / "generation_config.json").write_text(json.dumps(given))
  words = huggingface.tokenizer(folder)
  words.save(tmp_path / "run.json")
  decoder = our_decoders.drawn(our_decoders.config(vocab_size=300))
  for number, kept in enumerate((words, our_tokenizers.load(tmp_path / "run.json"))):
    out = tmp_path / f"out{number}"
    huggingface.export(decoder, out, tokenizer=kept)
    config = json.loads((out / "config.json").read_text())
    assert {name: config[name] for name in ids} == ids | {"eos_token_id": [2, 5]}
    again = json.loads((out / "generation_config.json").read_text())
    assert again == given | {"bos_token_id": 1}
    assert huggingface.tokenizer(out).end_ids == words.end_ids == (1, 2, 5)


def damaged(folder):
  (folder / "tokenizer.json").write_text("{}")


def missing(folder):
  (folder / "tokenizer.json").unlink()


def without_size(folder):
  (folder / "config.json").write_text("{}")


@pytest.mark.parametrize(
  "size, ids, damage, message",
  [
    (200, {"bos_token_id": 1}, None, "has token 263, but the embedding has 200 rows"),
    (300, {}, None, "bos_token_id=None and eos_token_id=None; one of them must be a token, 0..299"),
    (300, {"bos_token_id": 300}, None, "bos_token_id=300 and eos_token_id=None"),
    (300, {"bos_token_id": 1}, damaged, "tokenizer.json cannot be read"),
    (300, {"bos_token_id": 1}, missing, "has no tokenizer.json; save it with a fast tokenizer"),
    (300, {"bos_token_id": 1}, without_size, "config.json: .* missing required field vocab_size"),
  ],
)
def test_bad_folders_are_one_line(size, ids, damage, message, tmp_path):
  write(tmp_path, sentence_piece(), size, **ids)
  if damage:
    damage(tmp_path)
  with pytest.raises(ValueError, match=message) as caught:
    huggingface.tokenizer(tmp_path)
  assert "\n" not in str(caught.value)
