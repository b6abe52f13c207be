"""Settings of the data: the frozen form of `config.data`."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

FORMATS = ("auto", "text", "jsonl", "parquet")
TOKENIZERS = ("bpe", "byte", "pretrained")
SPLITS = ("train", "validation", "test")
BYTE_VOCAB = 257  # the 256 bytes and the end of text

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def _require(ok: bool, path: str, value: Any, allowed: str) -> None:
  if not ok:
    raise ValueError(f"config.data.{path} is {value!r}; {allowed}")


class Knobs(NamedTuple):
  """What the settings of a corpus are called, for messages."""

  source: str
  format: str
  field: str

  @classmethod
  def of(cls, name: str) -> "Knobs":
    """Returns those of the corpus called `name` of a config."""
    return cls(*[f"config.data.corpora.{name}.{setting}" for setting in cls._fields])


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
  """One corpus of a mixture.

  Attributes:
    source: `python-stdlib`; or a file, folder or glob, also of gs://; or `tfds:NAME[/CONFIG]`.
    format: one of `FORMATS`; `auto` goes by the file ending.
    field: field of JSONL, column of Parquet, feature of a TFDS builder that holds the text.
    weight: share of the training rows, relative to the other corpora.
  """

  source: str
  format: str = "auto"
  field: str = "text"
  weight: float = 1.0

  def check(self, name: str) -> None:
    """Raises ValueError if a setting of the corpus called `name` is out of range."""
    path = f"corpora.{name}"
    _require(bool(self.source), f"{path}.source", self.source, "name a source of text")
    one_of = f"allowed: {', '.join(FORMATS)}"
    _require(self.format in FORMATS, f"{path}.format", self.format, one_of)
    _require(bool(self.field), f"{path}.field", self.field, "name a field")
    good = self.weight > 0 and math.isfinite(self.weight)
    _require(good, f"{path}.weight", self.weight, "it must be positive and finite")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """How text becomes tokens.

  Attributes:
    name: one of `TOKENIZERS`.
    vocab_size: V that `bpe` may grow to (a small corpus gives fewer), or that the embedding beside
      a `pretrained` one has; `byte` has `BYTE_VOCAB`.
    train_bytes: bytes of text that `bpe` learns its merges from.
    folder: of a `pretrained` one, with tokenizer.json and config.json.
  """

  name: str = "bpe"
  vocab_size: int = 8192
  train_bytes: int = 20_000_000
  folder: str = ""

  def __post_init__(self):
    one_of = f"allowed: {', '.join(TOKENIZERS)}"
    _require(self.name in TOKENIZERS, "tokenizer.name", self.name, one_of)
    large = self.name != "bpe" or self.vocab_size >= BYTE_VOCAB
    at_least = f"bpe needs at least {BYTE_VOCAB}: 256 bytes and the end of text"
    _require(large, "tokenizer.vocab_size", self.vocab_size, at_least)
    _require(self.train_bytes > 0, "tokenizer.train_bytes", self.train_bytes, "at least 1")
    named = bool(self.folder) == (self.name == "pretrained")
    needs = "tokenizer.name='pretrained' needs the folder of a Hugging Face model, others none"
    _require(named, "tokenizer.folder", self.folder, needs)

  @property
  def vocab_limit(self) -> int:
    """V, or what it may grow to: known before the data are built."""
    return BYTE_VOCAB if self.name == "byte" else self.vocab_size


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """What to train on, and how it is cut into rows.

  Attributes:
    root: folder of built corpora, tokenizers and rows, shared by all runs. Of one at gs:// every
      machine keeps a copy, see `resjax.data.mirror.local`.
    seq_len: T, tokens in a row.
    corpora: name to `CorpusConfig` (or to a mapping with its fields); kept as pairs sorted by name.
    tokenizer: how text becomes tokens.
    validation_fraction: share of the documents, by hash; 0: no such split.
    test_fraction: likewise.
  """

  root: str
  seq_len: int
  corpora: Mapping[str, Any] | tuple[tuple[str, CorpusConfig], ...]
  tokenizer: TokenizerConfig
  validation_fraction: float = 0.02
  test_fraction: float = 0.02

  def __post_init__(self):
    pairs = self.corpora.items() if isinstance(self.corpora, Mapping) else self.corpora
    corpora = tuple(sorted((name, _corpus(name, value)) for name, value in pairs))
    object.__setattr__(self, "corpora", corpora)
    _require(bool(self.root), "root", self.root, "name a folder")
    _require(self.seq_len >= 2, "seq_len", self.seq_len, "at least 2 tokens")
    _require(bool(corpora), "corpora", {}, "name at least one corpus")
    for key in ("validation_fraction", "test_fraction"):
      value = getattr(self, key)
      _require(0 <= value < 1, key, value, "it must lie in [0, 1)")
    held_out = self.validation_fraction + self.test_fraction
    rest = f"with test_fraction {self.test_fraction} nothing is left to train on"
    _require(held_out < 1, "validation_fraction", self.validation_fraction, rest)

  @property
  def splits(self) -> tuple[str, ...]:
    """The splits that are built, in the order of `SPLITS`."""
    fractions = {"validation": self.validation_fraction, "test": self.test_fraction}
    return tuple(split for split in SPLITS if fractions.get(split, 1.0) > 0)


def _corpus(name: str, value: Any) -> CorpusConfig:
  allowed = "lower-case letters, digits, - and _, a letter first (it names folders)"
  _require(bool(_NAME.fullmatch(name)), "corpora", name, f"names may hold {allowed}")
  if not isinstance(value, CorpusConfig):
    fields = [f.name for f in dataclasses.fields(CorpusConfig)]
    for key in value:
      known = f"not a setting; allowed: {', '.join(fields)}"
      _require(key in fields, f"corpora.{name}", key, known)
    _require("source" in value, f"corpora.{name}", dict(value), "source is missing")
    value = CorpusConfig(**value)
  value.check(name)
  return value
