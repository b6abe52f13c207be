"""The tokenizer of a pretrained model, read from its tokenizer.json."""

import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from resjax import locations
from resjax.data.token_spelling import from_byte_level, from_sentencepiece
from resjax.locations import Location

MAIN = "tokenizer.json"
_FILES = (
  MAIN,
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "chat_template.jinja",
)


class LibraryTokenizer:
  """Encodes and decodes text by a model of the `tokenizers` library.

  Args:
    model: the model; kept as an attribute. Text that spells a special token stays text.
  """

  def __init__(self, model: tokenizers.Tokenizer):
    model.encode_special_tokens = True
    self.model = model

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the tokens of each text, int32, without tokens that begin or end a text."""
    encodings = self.model.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(encoding.ids, np.int32) for encoding in encodings]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, with special tokens spelled out."""
    return self.model.decode([int(i) for i in ids], skip_special_tokens=False)


class PretrainedTokenizer(LibraryTokenizer):
  """A tokenizer for a model with V rows of embeddings.

  Args:
    files: the contents of its files by name, among them tokenizer.json; they are kept as they are.
    vocab_size: V, at least the number of its tokens.
    ids: bos_token_id and eos_token_id of the model: numbers, lists of numbers, or None.

  Attributes:
    eot_id: bos_token_id if there is one, else the first eos_token_id.
    end_ids: `eot_id`, and every eos_token_id.

  Raises:
    ValueError: A file is damaged, there are more tokens than V, or neither id is given.
  """

  def __init__(self, files: Mapping[str, str], vocab_size: int, ids: Mapping[str, object]):
    try:
      model = tokenizers.Tokenizer.from_str(files[MAIN])
    except Exception as error:  # The library raises Exception itself.
      raise ValueError(f"{MAIN} cannot be read: {error}") from None
    largest = max(model.get_vocab().values(), default=-1)
    if largest >= vocab_size:
      raise ValueError(
        f"{MAIN} has token {largest}, but the embedding has {vocab_size} rows (vocab_size in "
        "config.json): they belong to different models"
      )
    model.no_truncation()
    model.no_padding()
    super().__init__(model)
    self.files, self.ids = dict(files), dict(ids)
    self.vocab_size, self.end_ids = vocab_size, _end_ids(ids, vocab_size)
    self.eot_id = self.end_ids[0]
    by_byte = _is_byte_level(json.loads(files[MAIN]))
    self._bytes_of = from_byte_level if by_byte else from_sentencepiece
    self._added = model.get_added_tokens_decoder()

  def piece(self, token: int) -> bytes:
    """Returns the bytes that a token stands for; no bytes for an unused row of the embedding."""
    if token in self._added:
      return self._added[token].content.encode()
    spelled = self.model.id_to_token(int(token))
    return b"" if spelled is None else self._bytes_of(spelled)

  def token_bytes(self) -> np.ndarray:
    """Returns int32 [V]: the UTF-8 bytes of each token; 0 for special tokens and unused rows."""
    sizes = np.zeros(self.vocab_size, np.int32)
    for token, index in self.model.get_vocab().items():
      sizes[index] = len(self._bytes_of(token))
    for index, added in self._added.items():
      sizes[index] = 0 if added.special else len(added.content.encode())
    return sizes

  @property
  def record(self) -> str:
    """All arguments of the constructor, as JSON."""
    fields = {"name": "pretrained", "files": self.files, "ids": self.ids}
    return json.dumps(fields | {"vocab_size": self.vocab_size})

  def save(self, path: Location) -> None:
    """Writes `record` to the file `path`."""
    locations.write_text(path, self.record)

  @classmethod
  def from_record(cls, record: Mapping) -> "PretrainedTokenizer":
    """Returns the tokenizer that `save` wrote."""
    return cls(record["files"], record["vocab_size"], record["ids"])


def load_pretrained(folder: str | os.PathLike) -> PretrainedTokenizer:
  """Returns the tokenizer of a Hugging Face folder, read from tokenizer.json and config.json.

  Raises:
    ValueError: A file is missing or damaged, or there are more tokens than rows of the embedding.
  """
  folder = pathlib.Path(folder)
  config = read_json(folder / "config.json")
  if not (folder / MAIN).is_file():
    raise ValueError(f"{folder} has no {MAIN}; save it with a fast tokenizer of transformers")
  if not isinstance(config.get("vocab_size"), int):
    raise ValueError(f"{folder / 'config.json'} has no vocab_size")
  paths = [folder / name for name in _FILES]
  files = {path.name: path.read_text(encoding="utf-8") for path in paths if path.is_file()}
  ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id")}
  try:
    return PretrainedTokenizer(files, config["vocab_size"], ids)
  except ValueError as error:
    raise ValueError(f"{folder}: {error}") from None


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file.

  Raises:
    ValueError: The file is missing, or holds something else.
  """
  try:
    values = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise ValueError(f"{path.parent} has no {path.name}") from None
  except (UnicodeDecodeError, json.JSONDecodeError) as error:
    raise ValueError(f"{path} is no JSON object: {error}") from None
  if not isinstance(values, dict):
    raise ValueError(f"{path} must hold an object, not a {type(values).__name__}")
  return values


def _end_ids(ids: Mapping[str, object], vocab_size: int) -> tuple[int, ...]:
  """Returns the tokens that begin or end a text, each once, those that begin a text first."""
  begin, end = ids.get("bos_token_id"), ids.get("eos_token_id")
  given = [i for value in (begin, end) for i in (value if isinstance(value, list) else [value])]
  known = [i for i in given if isinstance(i, int) and 0 <= i < vocab_size]
  if not known:
    raise ValueError(
      f"config.json has bos_token_id={begin!r} and eos_token_id={end!r}; one of them must be a "
      f"token, 0..{vocab_size - 1}: it stands before every text"
    )
  return tuple(dict.fromkeys(known))


def _is_byte_level(content: Mapping) -> bool:
  """Returns whether each character of a token stands for one byte (GPT-2, Llama 3, Qwen)."""
  parts = [content.get("pre_tokenizer") or {}, content.get("decoder") or {}]
  for part in parts:
    parts += part.get("pretokenizers", []) + part.get("decoders", [])
  return any(part.get("type") == "ByteLevel" for part in parts)
