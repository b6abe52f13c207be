"""Tokenizers of Hugging Face folders: round trips, bytes of tokens, and the end of text."""

import json
import re

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from resjax.data import dataset, tokenizer
from resjax.data.config import TokenizerConfig
from resjax.data.pretrained_tokenizer import PretrainedTokenizer, load_pretrained
from tests.data.conftest import make_texts
from tests.helpers import pretrained

TEXTS = ["depth width", "the gate of a layer", "<s>"]


def byte_level():
  """Makes a byte-level BPE like that of GPT-2, with an added token of two spaces."""
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  trainer = trainers.BpeTrainer(
    vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
  )
  made.train_from_iterator(make_texts(50), trainer)
  made.add_tokens(["  "])
  return made


def test_byte_level_text_and_bytes():
  made = PretrainedTokenizer({"tokenizer.json": byte_level().to_str()}, 400, {"bos_token_id": 0})
  texts = [*make_texts(20, seed=1), "a  b", "<end> \u2581"]
  sizes = made.token_bytes()
  assert sizes.shape == (400,) and sizes[0] == 0 and not sizes[301:].any()
  for text, ids in zip(texts, made.encode_batch(texts), strict=True):
    assert made.decode(ids) == text and ids.dtype == np.int32
    assert sizes[ids].sum() == len(text.encode()) and 0 not in ids
  assert 300 in made.encode_batch(["a  b"])[0]  # This is the added token.


def test_words_with_a_space_before_them(tmp_path):
  made = load_pretrained(pretrained.folder(tmp_path))
  assert made.eot_id == 0 and made.vocab_size == pretrained.V
  sizes = made.token_bytes()
  for text, ids in zip(TEXTS[:2], made.encode_batch(TEXTS[:2]), strict=True):
    assert made.decode(ids) == text
    assert sizes[ids].sum() == len(text) + 1  # The one more is the space before the text.
    assert 0 not in ids  # The template of the file is not applied.


def test_saved_and_loaded(tmp_path):
  made = load_pretrained(pretrained.folder(tmp_path))
  made.save(tmp_path / "copy.json")
  again = tokenizer.load(tmp_path / "copy.json")
  assert (again.vocab_size, again.eot_id) == (made.vocab_size, made.eot_id)
  for a, b in zip(made.encode_batch(TEXTS), again.encode_batch(TEXTS), strict=True):
    np.testing.assert_array_equal(a, b)
  assert again.record == made.record


@pytest.mark.parametrize(
  ("ids", "ends"),
  [
    ((5, 6), (5, 6)),
    ((5, 5), (5,)),
    ((None, 6), (6,)),
    ((4, [7, 8]), (4, 7, 8)),
    ((None,) * 2, None),
  ],
)
def test_what_begins_and_ends_a_document(tmp_path, ids, ends):
  folder = pretrained.folder(tmp_path)
  config = json.loads((folder / "config.json").read_text())
  config.update(bos_token_id=ids[0], eos_token_id=ids[1])
  (folder / "config.json").write_text(json.dumps(config))
  (folder / "generation_config.json").unlink()
  if ends is None:
    with pytest.raises(ValueError, match="bos_token_id=None and eos_token_id=None; one of"):
      load_pretrained(folder)
  else:
    words = load_pretrained(folder)
    assert (words.eot_id, words.end_ids) == (ends[0], ends)


ENDS = [  # config.json, its text_config, generation_config.json, tokenizer_config.json; end_ids
  ((0, 1), {}, {"bos_token_id": 0, "eos_token_id": [1, 7]}, {}, (0, 1, 7)),
  ((0, [2, 3]), {}, {"eos_token_id": 7}, {}, (0, 2, 3, 7)),
  ((0, 1), {}, {"eos_token_id": [1, 99]}, {}, (0, 1)),  # a row that the embedding does not have
  ((0, None), {}, {"eos_token_id": None}, {"eos_token": "</s>"}, (0, 1)),
  ((0, 5), {}, {}, {"eos_token": {"content": "</s>", "lstrip": False}}, (0, 5, 1)),
  ((0, 5), {}, {}, {"eos_token": "of another model"}, (0, 5)),
  ((None, None), {"bos_token_id": 0, "eos_token_id": 4}, {"eos_token_id": [6]}, {}, (0, 4, 6)),
  ((None, [2, 3]), {"eos_token_id": 4}, {}, {}, (2, 3, 4)),
]


@pytest.mark.parametrize(("ids", "nested", "generation", "settings", "ends"), ENDS)
def test_whatever_file_says_that_a_token_ends_texts(
  tmp_path, ids, nested, generation, settings, ends
):
  folder = pretrained.folder(tmp_path)
  config = json.loads((folder / "config.json").read_text())
  config.update(bos_token_id=ids[0], eos_token_id=ids[1])
  if nested:
    config["text_config"] = nested | {"vocab_size": pretrained.V}
  files = {"config": config, "generation_config": generation, "tokenizer_config": settings}
  for name, content in files.items():
    (folder / f"{name}.json").write_text(json.dumps(content))
  made = load_pretrained(folder)
  assert made.end_ids == ends
  made.save(tmp_path / "copy.json")
  assert tokenizer.load(tmp_path / "copy.json").end_ids == ends


def test_the_end_of_older_folders(tmp_path):
  folder = pretrained.folder(tmp_path)
  (folder / "generation_config.json").unlink()
  (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))
  config = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
  assert load_pretrained(folder).end_ids == (0, 1)


def test_more_tokens_than_rows(tmp_path):
  folder = pretrained.folder(tmp_path)
  config = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 40}))
  message = "the tokenizer has token 49, but the embedding has 40 rows"
  with pytest.raises(ValueError, match=re.escape(message)) as error:
    load_pretrained(folder)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("name", "content", "words"),
  [
    ("tokenizer.json", None, "has no tokenizer.json"),
    ("tokenizer.json", "{}", "cannot be read"),
    ("tokenizer.json", "\ud800", "is not UTF-8"),
    ("special_tokens_map.json", "\ud800", "is not UTF-8"),
    ("config.json", None, "has no config.json"),
    (
      "config.json",
      '{"vocab_size": 4294967296}',
      "vocab_size is 4294967296: expected int <= 16777216",
    ),
    ("config.json", '{"vocab_size": true}', "vocab_size is True"),
    ("config.json", '{"vocab_size": 61, "bos_token_id": "0"}', "bos_token_id is '0'"),
    (
      "config.json",
      '{"vocab_size": 61, "bos_token_id": []}',
      "bos_token_id: expected array of length >= 1",
    ),
    ("config.json", "[", "holds no JSON"),
    ("generation_config.json", "[]", "generation_config.json: the value: expected object"),
    ("generation_config.json", '{"eos_token_id": "1"}', "generation_config.json: eos_token_id is"),
  ],
)
def test_damaged_folders(tmp_path, name, content, words):
  folder = pretrained.folder(tmp_path)
  (folder / name).unlink(missing_ok=True)
  if content is not None:
    (folder / name).write_bytes(content.encode(errors="surrogatepass"))
  with pytest.raises(ValueError, match=words) as error:
    load_pretrained(folder)
  assert "\n" not in str(error.value)


def test_data_are_built_with_it(folder_config, tmp_path):
  folder = pretrained.folder(tmp_path)
  settings = TokenizerConfig("pretrained", pretrained.V, folder=str(folder))
  texts = [f"depth width {word}" for word in ("gate", "norm", "query", "layer", "token", "stream")]
  config = folder_config({"a": texts}, **{"validation_fraction": 0.3})
  summary = dataset.build(type(config)(**(vars(config) | {"tokenizer": settings})))
  assert summary.vocab_size == pretrained.V
  assert tokenizer.load(summary.tokenizer).files == load_pretrained(folder).files


@pytest.mark.parametrize(("name", "folder"), [("pretrained", ""), ("byte", "x")])
def test_a_folder_for_pretrained_ones_alone(name, folder):
  with pytest.raises(ValueError, match=r"config\.data\.tokenizer\.folder is"):
    TokenizerConfig(name, 300, folder=folder)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"files": {"tokenizer.json": "{}"}}, "tokenizer.json cannot be read"),
    ({"files": {}}, "files has no tokenizer.json"),
    (
      {"files": {"tokenizer.json": "{}", "../../victim": "text"}},
      "files has '../../victim'; allowed: tokenizer.json, ",
    ),
    ({"files": ["tokenizer.json"]}, "files: expected object, got array"),
    ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776: expected int <= 16777216"),
    ({"vocab_size": 40}, "has token 49, but the embedding has 40 rows"),
    ({"ids": {"bos_token_id": 99}, "generation": {}}, "bos_token_id=99 and eos_token_id=None"),
    ({"ids": {"pad": 1}, "generation": {}}, "bos_token_id=None and eos_token_id=None"),
    ({"generation": {"eos_token_id": "1"}}, "generation_config.json: eos_token_id is '1'"),
    ({"ids": {"bos_token_id": 1.5}}, "ids.bos_token_id is 1.5"),
    ({"name": "words"}, "name is 'words'; allowed: byte, pretrained, synthetic, or none"),
    ({"name": 3}, "name is 3: expected str"),
    ({"name": None}, "cannot be read"),
  ],
)
def test_a_damaged_file_of_a_run_is_named(tmp_path, changes, words):
  record = json.loads(load_pretrained(pretrained.folder(tmp_path)).record)
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(record | changes))
  with pytest.raises(ValueError, match=re.escape(words)) as error:
    tokenizer.load(path)
  assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_learned_tokens_beyond_the_vocabulary_are_refused(tmp_path):
  made = byte_level()
  made.add_special_tokens(["<|endoftext|>"])
  content = json.loads(made.to_str())
  content["model"]["vocab"]["unused"] = 10**9
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(content))
  with pytest.raises(
    ValueError, match=r"tokenizer.json: the tokenizer has \d+ tokens, one of them"
  ):
    tokenizer.load(path)
