"""Tokenizers: BPE learned from the corpora, bytes, tokenizers of trained models and of tasks."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from resjax.base import Location, locations, typed_json
from resjax.data.config import BYTE_VOCAB
from resjax.data.model_files import MAIN, read_text
from resjax.data.pretrained_tokenizer import (
  LibraryTokenizer,
  PretrainedRecord,
  PretrainedTokenizer,
  library_model,
)
from resjax.data.special_tokens import Around
from resjax.data.synthetic.alphabet import SyntheticTokenizer
from resjax.data.token_spelling import END_OF_TEXT, from_byte_level

# Merges stay inside these parts of a text: a word with its leading space, up to three digits,
# punctuation, and whitespace, of which the last character stays with the word that follows.
_PARTS = r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CHUNK = 1 << 16  # Characters; longer texts would take much memory while merges are learned.


class Tokenizer(Protocol):
  """Turns any Unicode text into tokens and back, without loss.

  Attributes:
    vocab_size: V.
    eot_id: the token that stands before every document and after the last, unless `documents`
      says otherwise; no text encodes to it.
    end_ids: the tokens at which a sampled text ends; `eot_id` is the first of them.
    documents: the tokens that stand around documents in rows.
  """

  vocab_size: int
  eot_id: int
  end_ids: tuple[int, ...]
  documents: Around

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the tokens of each text, int32."""

  def encode_with_bytes(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the tokens of each text, and how many bytes of the text each token stands for.

    Returns:
      For each text its tokens [n], int32, and the bytes [n + 1], int64, which sum to the
      length of the text; the last number counts the bytes behind the last token.
    """

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, end of text spelled out; bytes that are no UTF-8 become U+FFFD."""

  def piece(self, token: int) -> bytes:
    """Returns the bytes of text that a token below V stands for, end of text spelled out."""

  def token_bytes(self) -> np.ndarray:
    """Returns int32 [V]: the UTF-8 bytes that each token stands for, 0 for end of text."""

  def save(self, path: Location) -> None:
    """Writes the tokenizer to the file `path`, at once or not at all."""


class ByteTokenizer:
  """The tokenizer whose token b is byte b; token 256 is the end of text."""

  vocab_size = BYTE_VOCAB
  eot_id = 256
  end_ids: tuple[int, ...] = (eot_id,)
  documents = Around((eot_id,))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the UTF-8 bytes of each text, int32."""
    return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

  def encode_with_bytes(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the bytes of each text, and a one for each of them and a zero behind."""
    return [(ids, np.append(np.ones(len(ids), np.int64), 0)) for ids in self.encode_batch(texts)]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`."""
    parts = (END_OF_TEXT.encode() if i == self.eot_id else bytes([i]) for i in ids)
    return b"".join(parts).decode(errors="replace")

  def piece(self, token: int) -> bytes:
    """Returns the byte that the token is, or the end of text spelled out."""
    return END_OF_TEXT.encode() if token == self.eot_id else bytes([token])

  def token_bytes(self) -> np.ndarray:
    """Returns the bytes that each token stands for, int32 [257]: one, and none at the end."""
    return np.array([1] * 256 + [0], np.int32)

  def save(self, path: Location) -> None:
    """Writes the name of the tokenizer to `path`; there is nothing else to store."""
    locations.write_text(path, json.dumps({"name": "byte"}))


class BpeTokenizer(LibraryTokenizer):
  """Byte-pair encoding of UTF-8 bytes (Sennrich et al. 2016; byte level: Radford et al. 2019).

  Args:
    model: a byte-level BPE with the special token `<|endoftext|>`; kept as an attribute.

  Raises:
    ValueError: The model has no such token, or its tokens are not numbered from 0 on.
  """

  def __init__(self, model: tokenizers.Tokenizer):
    eot_id = model.token_to_id(END_OF_TEXT)
    if eot_id is None:
      raise ValueError(f"the tokenizer has no token {END_OF_TEXT}")
    super().__init__(model.to_str(), model, [eot_id])
    self.vocab_size, self.eot_id = model.get_vocab_size(), eot_id
    largest = max(model.get_vocab().values())
    if largest >= self.vocab_size:
      raise ValueError(f"the tokenizer has {self.vocab_size} tokens, one of them number {largest}")
    self.end_ids: tuple[int, ...] = (eot_id,)
    self.documents = Around((eot_id,))

  def piece(self, token: int) -> bytes:
    """Returns the bytes that the characters of a token spell."""
    spelling = self.model.id_to_token(int(token)) or ""
    return spelling.encode() if token == self.eot_id else from_byte_level(spelling)

  def token_bytes(self) -> np.ndarray:
    """Returns int32 [V]: the number of characters of each token, each of which spells a byte."""
    sizes = np.zeros(self.vocab_size, np.int32)
    for token, index in self.model.get_vocab().items():
      sizes[index] = 0 if index == self.eot_id else len(token)
    return sizes

  def save(self, path: Location) -> None:
    """Writes the file `path` in the format of the `tokenizers` library."""
    locations.write_text(path, self.model.to_str())


def train_bpe(texts: Iterable[str], vocab_size: int) -> BpeTokenizer:
  """Learns merges from `texts` until the vocabulary has `vocab_size` tokens or merges run out."""
  model = tokenizers.Tokenizer(models.BPE())
  split = pre_tokenizers.Split(tokenizers.Regex(_PARTS), "isolated")
  to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  model.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
  model.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=[END_OF_TEXT],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  model.train_from_iterator(_chunks(texts), trainer)
  return BpeTokenizer(model)


@dataclasses.dataclass(frozen=True)
class _Named:
  """What a tokenizer file says of its kind; that of a learned BPE has no name."""

  name: str | None = None
  source: str = ""


def load(path: Location) -> Tokenizer:
  """Returns the tokenizer that was saved to `path`.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file holds no tokenizer.
  """
  text = read_text(path)
  named = typed_json.parse(text, _Named, str(path))
  name = named.name
  if name == "byte":
    return ByteTokenizer()
  if name not in ("pretrained", "synthetic", None):
    raise ValueError(f"{path}: name is {name!r}; allowed: byte, pretrained, synthetic, or none")
  try:
    if name == "synthetic":
      return SyntheticTokenizer(named.source)
    if name == "pretrained":
      return PretrainedTokenizer.from_record(typed_json.parse(text, PretrainedRecord, "record"))
    return BpeTokenizer(library_model(text, "it"))
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from None


of_data = functools.cache(load)  # of built data, whose paths have a fingerprint of the content


def same_vocabulary(one: str, other: str) -> bool:
  """Returns whether a model of one tokenizer file can read the tokens of another one.

  What pretrained tokenizers put around documents, and take for markup, may differ.
  """
  return _vocabulary(one) == _vocabulary(other)


def _vocabulary(text: str) -> object:
  if typed_json.parse(text, _Named, "record").name != "pretrained":
    return text
  record = typed_json.parse(text, PretrainedRecord, "record")
  return record.files.get(MAIN), record.vocab_size


def _chunks(texts: Iterable[str]) -> Iterator[str]:
  for text in texts:
    for start in range(0, len(text), _CHUNK):
      yield text[start : start + _CHUNK]
