"""The bytes of the tokens of a text, joined, are the text."""

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from resjax.data import tokenizer
from resjax.data.pretrained_tokenizer import PretrainedTokenizer
from resjax.data.token_spelling import from_byte_level, from_sentencepiece
from tests.data.conftest import make_texts

TEXT = " the river\n\tétoile 日本 😀"


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
  path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
  tokenizer.train_bpe(make_texts(100), 300).save(path)
  return PretrainedTokenizer({"tokenizer.json": path.read_text()}, 310, {"bos_token_id": 0})


@pytest.fixture(scope="module")
def sentencepiece():
  """Makes a tokenizer like that of Llama 2: spaces are ▁, and unknown characters become bytes."""
  vocab = {"<unk>": 0, "<s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
  for word in ("▁", "t", "h", "e", "th", "the", "▁the", "r", "i", "v"):
    vocab[word] = len(vocab)
  merges = [("t", "h"), ("th", "e"), ("▁", "the")]
  model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
  made = tokenizers.Tokenizer(model)
  made.normalizer = normalizers.Replace(" ", "▁")
  made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
  made.add_special_tokens(["<s>"])
  return PretrainedTokenizer({"tokenizer.json": made.to_str()}, 300, {"bos_token_id": 1})


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_pieces_in_a_row_are_the_text(name, request):
  words = request.getfixturevalue(name)
  ids = words.encode_batch([TEXT])[0]
  assert b"".join(map(words.piece, ids)) == TEXT.encode()
  assert words.token_bytes()[ids].sum() == len(TEXT.encode())
  assert words.piece(words.vocab_size - 1) == b""  # This row of the embedding has no token.
  assert words.piece(words.eot_id) in (b"<s>", b"<|endoftext|>")


def test_spellings():
  assert from_byte_level("Ġthe") == b" the" and from_byte_level("Ċ") == b"\n"
  assert from_byte_level("<|完|>") == "<|完|>".encode()
  assert from_sentencepiece("▁the") == b" the" and from_sentencepiece("<0x0A>") == b"\n"
  assert from_sentencepiece("<0x0a>") == b"<0x0a>"
