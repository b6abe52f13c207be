"""The tokenizer of a Hugging Face folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from resjax import locations
from resjax.data import pieces
from resjax.locations import Location

NAME = "pretrained"
FILE, CONFIG = "tokenizer.json", "config.json"


class PretrainedTokenizer:
  """A tokenizer of the `tokenizers` library, beside an embedding that may have more rows.

  Args:
    text: its tokenizer.json.
    eot_id: stands before every document and after the last.
    vocab_size: V, rows of the embedding.
    where: the file, for messages.

  Raises:
    ValueError: it cannot be read, or has tokens that the embedding has not.
  """

  def __init__(self, text: str, *, eot_id: int, vocab_size: int, where: str = FILE):
    try:
      self._model = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library has no class of its own
      raise ValueError(f"{where} is no tokenizer that can be read: {error}") from None
    self._model.encode_special_tokens = True  # text that spells a special token stays text
    self._json, self.eot_id, self.vocab_size = text, eot_id, vocab_size
    # Byte-level alphabets spell each byte as one character.
    per_byte = '"ByteLevel"' in json.dumps(json.loads(text).get("decoder"))
    self._bytes_of = pieces.of_byte_level if per_byte else pieces.of_sentencepiece
    self._added = self._model.get_added_tokens_decoder()
    largest = max([eot_id, *self._model.get_vocab().values()])
    if largest >= vocab_size:
      raise ValueError(
        f"{where} has tokens up to {largest}, the embedding {vocab_size} rows; give the "
        "tokenizer that the model was trained with"
      )

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the tokens of each text, int32, without what templates add."""
    encodings = self._model.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(encoding.ids, np.int32) for encoding in encodings]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, special tokens spelled out; rows without a token are nothing."""
    return self._model.decode([int(i) for i in ids], skip_special_tokens=False)

  def piece(self, token: int) -> bytes:
    """Returns the bytes that a token stands for; none for a row without a token."""
    if token in self._added:
      return self._added[token].content.encode()
    spelled = self._model.id_to_token(int(token))
    return b"" if spelled is None else self._bytes_of(spelled)

  def token_bytes(self) -> np.ndarray:
    """Returns int32 [V]: the UTF-8 bytes of each token; 0 for special ones and without a token.

    Tokenizers that put a space before a text count it as a byte.
    """
    sizes = np.zeros(self.vocab_size, np.int32)
    for token, index in self._model.get_vocab(with_added_tokens=False).items():
      sizes[index] = len(self._bytes_of(token))
    for index, added in self._added.items():
      sizes[index] = 0 if added.special else len(added.content.encode())
    sizes[self.eot_id] = 0
    return sizes

  @property
  def spelled(self) -> str:
    """All of it, as JSON that `of_json` reads."""
    sizes = {"eot_id": self.eot_id, "vocab_size": self.vocab_size}
    return json.dumps({"name": NAME, **sizes, "tokenizer": self._json})

  def save(self, path: Location) -> None:
    """Writes `spelled` to the file `path`."""
    locations.write_text(path, self.spelled)


def of_json(fields: Mapping[str, Any]) -> PretrainedTokenizer:
  """Returns what `PretrainedTokenizer.save` wrote."""
  sizes = {name: fields[name] for name in ("eot_id", "vocab_size")}
  return PretrainedTokenizer(fields["tokenizer"], **sizes)


def of_folder(folder: str, vocab_size: int) -> PretrainedTokenizer:
  """Returns the tokenizer of a Hugging Face folder.

  A document begins with `bos_token_id` of config.json, or where there is none `eos_token_id`.

  Args:
    folder: with tokenizer.json and config.json.
    vocab_size: V, rows of the embedding.

  Raises:
    ValueError: a file is missing, or not what it should be.
  """
  place = locations.path(folder, "--hf")
  config = _config(place / CONFIG)
  eot = config.get("bos_token_id")
  eot = config.get("eos_token_id") if eot is None else eot
  eot = eot[0] if isinstance(eot, list) and eot else eot
  if not isinstance(eot, int):
    raise ValueError(
      f"{place / CONFIG} must have bos_token_id or eos_token_id, the token that begins a document"
    )
  if not (place / FILE).exists():
    raise ValueError(f"{place} has no {FILE}; save one with the `fast` tokenizer of transformers")
  spelled = (place / FILE).read_text(encoding="utf-8")
  where = str(place / FILE)
  return PretrainedTokenizer(spelled, eot_id=eot, vocab_size=vocab_size, where=where)


def _config(path: Location) -> Mapping[str, Any]:
  if not path.exists():
    raise ValueError(f"{path.parent} has no {CONFIG}")
  try:
    return dict(json.loads(path.read_text(encoding="utf-8")))
  except (ValueError, TypeError) as error:
    raise ValueError(f"{path} is no JSON object: {error}") from None
