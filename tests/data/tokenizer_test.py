import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from resjax.data import tokenizer
from tests.data.conftest import make_texts

HARD = [
  "",
  " ",
  "\r\n\t \n\n  x",
  "a<|endoftext|>b",
  "\ufeffbom \x00 nul \x7f",
  "日本語 한국어 العربية ﷽ हिन्दी",
  "e\u0301 vs \u00e9, ﬁ, \u2028\u2029\u00a0",
  "😀👨‍👩‍👧‍👦🏳️‍🌈 \U0010ffff",
  "1234567890 3.14159e-10 0xDEADBEEF",
  "def f(x):\n    return x  # don't\n",
  "".join(chr(c) for c in range(0x250)),
]


@pytest.fixture(scope="module")
def bpe():
  return tokenizer.train_bpe(make_texts(300), 400)


@pytest.fixture(params=["bpe", "byte"])
def any_tokenizer(request):
  return request.getfixturevalue("bpe") if request.param == "bpe" else tokenizer.ByteTokenizer()


def test_round_trip_and_byte_counts_on_any_unicode(any_tokenizer):
  texts = HARD + make_texts(20, seed=1)
  sizes = any_tokenizer.token_bytes()
  assert sizes.shape == (any_tokenizer.vocab_size,) and sizes.dtype == np.int32
  for text, ids in zip(texts, any_tokenizer.encode_batch(texts), strict=True):
    assert ids.dtype == np.int32
    assert any_tokenizer.decode(ids) == text
    assert sizes[ids].sum() == len(text.encode())
    assert any_tokenizer.eot_id not in ids
    assert b"".join(map(any_tokenizer.piece, ids)) == text.encode()


def test_end_of_text_and_broken_bytes_decode(any_tokenizer):
  eot = any_tokenizer.eot_id
  ids = [eot, *any_tokenizer.encode_batch(["hé"])[0], eot]
  assert any_tokenizer.decode(ids) == "<|endoftext|>hé<|endoftext|>"
  assert any_tokenizer.token_bytes()[eot] == 0
  assert any_tokenizer.piece(eot) == b"<|endoftext|>"
  first_byte = any_tokenizer.encode_batch(["\U0010ffff"])[0][:1]  # The first of four bytes.
  assert any_tokenizer.decode(first_byte) == "\ufffd"


def test_save_and_load(any_tokenizer, tmp_path):
  path = tmp_path / "folder" / "tokenizer.json"
  any_tokenizer.save(path)
  loaded = tokenizer.load(path)
  assert [f.name for f in path.parent.iterdir()] == ["tokenizer.json"]
  assert (loaded.vocab_size, loaded.eot_id) == (any_tokenizer.vocab_size, any_tokenizer.eot_id)
  for one, two in zip(any_tokenizer.encode_batch(HARD), loaded.encode_batch(HARD), strict=True):
    np.testing.assert_array_equal(one, two)


def test_bytes_are_bytes():
  ids = tokenizer.ByteTokenizer().encode_batch(["aé"])[0]
  assert ids.tolist() == list("aé".encode())


def test_bpe_learns_up_to_the_vocabulary(bpe):
  assert bpe.vocab_size == 400
  texts = make_texts(50, seed=2)
  num_tokens = sum(map(len, bpe.encode_batch(texts)))
  assert num_tokens < 0.7 * sum(len(text.encode()) for text in texts)
  assert tokenizer.train_bpe(["aaaa"], 400).vocab_size < 270


def test_no_piece_joins_words_or_long_numbers(bpe):
  ids = bpe.encode_batch(["the river the river 123451234512345"])[0]
  tokens = [bpe.decode([i]) for i in ids]
  assert " the river" not in tokens and " river" in tokens
  assert max(len(t.strip()) for t in tokens if t.strip().isdigit()) <= 3


def test_training_does_not_depend_on_threads(bpe, tmp_path):
  bpe.save(tmp_path / "here.json")
  code = (
    "from pathlib import Path; from resjax.data import tokenizer;"
    "from tests.data.conftest import make_texts;"
    f"tokenizer.train_bpe(make_texts(300), 400).save(Path({str(tmp_path / 'there.json')!r}))"
  )
  environment = os.environ | {"RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
  root = Path(__file__).parents[2]
  subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=root)
  assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
