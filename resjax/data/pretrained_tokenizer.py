"""The tokenizer of a pretrained model, read from its tokenizer.json."""

import abc
import dataclasses
import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import tokenizers

from resjax.base import Location, locations, typed_json
from resjax.data import model_files, special_tokens
from resjax.data.config import MARKUP
from resjax.data.model_files import CONFIG, MAIN, TOKENIZER, Named
from resjax.data.model_ids import GENERATION, EndIds, Given, ModelIds, unique
from resjax.data.special_tokens import Around
from resjax.data.text_encoder import TextEncoder
from resjax.data.token_spelling import from_byte_level, from_sentencepiece

MOST_ROWS = 1 << 24  # of an embedding; the largest vocabularies have about a million tokens

_Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]


@dataclasses.dataclass(frozen=True)
class PretrainedRecord:
  """What `PretrainedTokenizer.save` writes: the arguments of its constructor.

  Attributes:
    files: the contents of its files by name.
    vocab_size: V.
    ids: the special tokens of the model.
    generation: what its generation_config.json says.
    documents, markup: see the constructor.
  """

  files: dict[str, str]
  vocab_size: _Rows
  ids: ModelIds
  generation: dict[str, Any] = dataclasses.field(default_factory=dict)
  documents: Around | None = None
  markup: Literal["text", "tokens", "with_ends"] = "text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TextConfig(ModelIds):
  """The settings of the model of text in a file that also describes one of images.

  The first files of Gemma 3 leave out what transformers has as default.
  """

  vocab_size: _Rows = 262_208


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ModelConfig(ModelIds):
  """The settings of config.json that a tokenizer needs."""

  vocab_size: _Rows | msgspec.UnsetType = msgspec.UNSET
  text_config: _TextConfig | None = None


@dataclasses.dataclass(frozen=True)
class _Part:
  """A part of tokenizer.json that may hold others."""

  type: str = ""
  pretokenizers: list["_Part"] = dataclasses.field(default_factory=list)
  decoders: list["_Part"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Parts:
  """The parts of tokenizer.json that say how tokens are spelled."""

  pre_tokenizer: _Part | None = None
  decoder: _Part | None = None


class LibraryTokenizer(abc.ABC):
  """Encodes and decodes text by a model of the `tokenizers` library.

  Args:
    content: the model, JSON in the format of the library.
    model: the same, read; kept as an attribute.
    ends, special, markup: see `TextEncoder`.

  Attributes:
    control: the tokens that no text becomes, see `TextEncoder`.
  """

  def __init__(
    self,
    content: str,
    model: tokenizers.Tokenizer,
    ends: Collection[int],
    special: Collection[int] = (),
    markup: Collection[int] = (),
  ):
    self.model, self._encoder = model, TextEncoder(content, ends, special, markup)
    self.control = self._encoder.control

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the tokens of each text, int32, without tokens that begin or end a text."""
    return self._encoder.encode_batch(texts)

  def encode_with_bytes(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the tokens of each text, and the bytes of it, see `TextEncoder.encode_with_bytes`."""
    found = [
      (ids, self._bytes_by_token(text, ids))
      for text, ids in zip(texts, self.encode_batch(texts), strict=True)
    ]
    # The bytes of tokens are those of the text, unless it was normalised or has unknown words.
    odd = [i for i, (_, sizes) in enumerate(found) if sizes[-1]]
    followed = self._encoder.encode_with_bytes([texts[i] for i in odd])
    for i, pair in zip(odd, followed, strict=True):
      found[i] = pair
    return found

  def _bytes_by_token(self, text: str, ids: np.ndarray) -> np.ndarray:
    """Returns the bytes of each token, and behind them how many more the text has."""
    sizes = np.append(self._sizes[ids], 0)
    sizes[-1] = len(text.encode()) - sizes.sum()
    # Tokenizers with words that begin in a space put one in front of the first word.
    if sizes[-1] == -1 and len(ids) and self.piece(ids[0])[:1] == b" " and text[:1] != " ":
      sizes[0], sizes[-1] = sizes[0] - 1, 0
    return sizes

  @functools.cached_property
  def _sizes(self) -> np.ndarray:
    return self.token_bytes().astype(np.int64)

  @abc.abstractmethod
  def piece(self, token: int) -> bytes:
    """Returns the bytes that a token stands for."""

  @abc.abstractmethod
  def token_bytes(self) -> np.ndarray:
    """Returns int32 [V]: the UTF-8 bytes of each token; 0 for control tokens."""

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, with special tokens spelled out."""
    return self.model.decode([int(i) for i in ids], skip_special_tokens=False)


class PretrainedTokenizer(LibraryTokenizer):
  """A tokenizer for a model with V rows of embeddings.

  Args:
    files: the contents of its files by name, among them tokenizer.json; they are kept as they are.
    vocab_size: V, at least the number of its tokens.
    ids: bos_token_id, eos_token_id and pad_token_id of config.json: numbers, lists, or None.
    generation: what generation_config.json says.
    documents: the tokens around documents in rows; None: `eot_id` separates them, as in the runs of
      earlier releases.
    markup: whether texts become the added tokens that they spell: `text`, they do not; `tokens`,
      they do but for those around documents; `with_ends`, these too.

  Attributes:
    ids: the same; what generation_config.json or the tokenizer's own eos_token says to end a text
      is an eos_token_id, too, and so is what stands behind given `documents`, or between them.
    eot_id: bos_token_id if there is one, else the first eos_token_id.
    end_ids: `eot_id`, and every eos_token_id.
    around: the tokens that its own rules put around a text, see `special_tokens.around`.

  Raises:
    ValueError: A file is damaged, there are more tokens than V, or neither id is given.
  """

  def __init__(
    self,
    files: Mapping[str, str],
    vocab_size: int,
    ids: Mapping[str, Given],
    generation: Mapping[str, Any] = MappingProxyType({}),
    documents: Around | None = None,
    markup: str = MARKUP[0],
  ):
    model = library_model(files[MAIN], MAIN)
    largest = max(model.get_vocab().values(), default=-1)
    if largest >= vocab_size:
      raise ValueError(
        f"the tokenizer has token {largest}, but the embedding has {vocab_size} rows (vocab_size): "
        "they belong to different models"
      )
    model.no_truncation()
    model.no_padding()
    self.files, self.generation = dict(files), dict(generation)
    theirs = typed_json.convert(self.generation, EndIds, GENERATION).eos_token_id
    given = typed_json.convert(dict(ids), ModelIds, "ids")
    found = given.with_ends(theirs, special_tokens.end(model, files))
    if documents is not None:  # The model has learned to end by it, whatever its folder names.
      found = found.with_ends(*(documents.after or documents.before)[:1])
    self.ids = found.as_dict()
    self.vocab_size, self.end_ids = vocab_size, _end_ids(found, vocab_size)
    self.eot_id = self.end_ids[0]
    self.around = special_tokens.around(model, files)
    self.given_documents, self.markup = documents, markup
    self.documents = documents or Around((self.eot_id,))
    ends = {*self.end_ids, *self.around.tokens, *self.documents.tokens}
    for token in ends:
      if not 0 <= token < vocab_size:
        raise ValueError(
          f"{MAIN} puts token {token} around texts; the embedding has {vocab_size} rows"
        )
    self._added = model.get_added_tokens_decoder()
    spelled = frozenset(self._added) if markup != MARKUP[0] else frozenset()
    self._markup = spelled - set(self.documents.tokens if markup == "tokens" else ())
    super().__init__(files[MAIN], model, ends, special_tokens.named(model, files), self._markup)
    by_byte = _is_byte_level(typed_json.parse(files[MAIN], _Parts, MAIN))
    self._bytes_of = from_byte_level if by_byte else from_sentencepiece

  def piece(self, token: int) -> bytes:
    """Returns the bytes that a token stands for; no bytes for an unused row of the embedding."""
    if token in self._added:
      return self._added[token].content.encode()
    spelled = self.model.id_to_token(int(token))
    return b"" if spelled is None else self._bytes_of(spelled)

  def token_bytes(self) -> np.ndarray:
    """Returns int32 [V]: the UTF-8 bytes of each token; 0 for control tokens and unused rows."""
    sizes = np.zeros(self.vocab_size, np.int32)
    for token, index in self.model.get_vocab().items():
      sizes[index] = len(self._bytes_of(token))
    for index, added in self._added.items():
      text = not added.special or index in self._markup
      sizes[index] = len(added.content.encode()) if text else 0
    sizes[list(self.control)] = 0
    return sizes

  @property
  def record(self) -> str:
    """All arguments of the constructor, as JSON."""
    fields = {"name": "pretrained", "files": self.files, "ids": self.ids}
    generation = {"generation": self.generation} if self.generation else {}
    rows: dict[str, Any] = {}
    if self.given_documents is not None:
      rows = {"documents": dataclasses.asdict(self.given_documents), "markup": self.markup}
    return json.dumps(fields | {"vocab_size": self.vocab_size} | generation | rows)

  def save(self, path: Location) -> None:
    """Writes `record` to the file `path`."""
    locations.write_text(path, self.record)

  @classmethod
  def from_record(cls, record: PretrainedRecord) -> "PretrainedTokenizer":
    """Returns the tokenizer that `save` wrote.

    Raises:
      ValueError: see the constructor; or the record has no tokenizer.json, or another file.
    """
    if MAIN not in record.files:
      raise ValueError(f"files has no {MAIN}")
    for name in record.files:  # an export gives files these names
      if name not in TOKENIZER:
        raise ValueError(f"files has {name!r}; allowed: {', '.join(TOKENIZER)}")
    ids = record.ids.as_dict()
    return cls(
      record.files, record.vocab_size, ids, record.generation, record.documents, record.markup
    )


def library_model(text: str, where: str) -> tokenizers.Tokenizer:
  """Returns the model that a text in the format of the `tokenizers` library describes.

  Raises:
    ValueError: it describes none; the message begins with `where`.
  """
  try:
    return tokenizers.Tokenizer.from_str(text)
  except Exception as error:  # The library raises Exception itself.
    raise ValueError(f"{where} cannot be read: {error}") from None


def load_pretrained(named: Named) -> PretrainedTokenizer:
  """Returns the tokenizer of a pretrained model, see `model_files.find`.

  It is read from tokenizer.json and what stands beside it, config.json and generation_config.json.

  Raises:
    ValueError: A file is missing or damaged, or there are more tokens than rows of the embedding.
  """
  folder = model_files.find(named)
  config = folder.json(CONFIG, _ModelConfig)
  rows = config.text_config.vocab_size if config.text_config else config.vocab_size
  if isinstance(rows, msgspec.UnsetType):
    raise ValueError(f"{folder.where(CONFIG)}: the value: missing required field vocab_size")
  found = ((name, folder.text(name)) for name in TOKENIZER)
  files = {name: text for name, text in found if text is not None}
  if MAIN not in files:
    raise ValueError(f"{folder} has no {MAIN}; save it with a fast tokenizer of transformers")
  nested = config.text_config or ModelIds()
  bos, pad = (
    getattr(nested if getattr(config, name) is None else config, name)
    for name in ("bos_token_id", "pad_token_id")
  )
  ids = ModelIds(bos_token_id=bos, eos_token_id=config.eos_token_id, pad_token_id=pad)
  said, where = folder.text(GENERATION), folder.where(GENERATION)
  generation = {} if said is None else typed_json.parse(said, dict[str, Any], where)
  try:
    ids = ids.with_ends(nested.eos_token_id)
    return PretrainedTokenizer(files, rows, ids.as_dict(), generation)
  except ValueError as error:
    raise ValueError(f"{folder}: {error}") from None


def record_before(tokenizer: PretrainedTokenizer, named: Named) -> str:
  """Returns the record that releases without `documents` made of the tokenizer of a model.

  They name the data of their runs by it.
  """
  config = model_files.find(named).json(CONFIG, ModelIds)
  ids = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
  fields = {"name": "pretrained", "files": tokenizer.files, "ids": ids}
  return json.dumps(fields | {"vocab_size": tokenizer.vocab_size})


def _end_ids(ids: ModelIds, vocab_size: int) -> tuple[int, ...]:
  """Returns the tokens that begin or end a text, each once, those that begin a text first."""
  given = unique(ids.bos_token_id, ids.eos_token_id)
  known = tuple(token for token in given if 0 <= token < vocab_size)
  if not known:
    raise ValueError(
      f"it has bos_token_id={ids.bos_token_id!r} and eos_token_id={ids.eos_token_id!r}; "
      f"one of them must be a token, 0..{vocab_size - 1}: it stands before every text"
    )
  return known


def _is_byte_level(parts: _Parts) -> bool:
  """Returns whether each character of a token stands for one byte (GPT-2, Llama 3, Qwen)."""
  found = [part for part in (parts.pre_tokenizer, parts.decoder) if part is not None]
  for part in found:
    found += part.pretokenizers + part.decoders
  return any(part.type == "ByteLevel" for part in found)
