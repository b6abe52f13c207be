"""The settings of the training data: the frozen form of `config.data`."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from resjax.base import AS_SEED, MAX_SEED, check_seed, check_types
from resjax.data.synthetic import tasks
from resjax.data.synthetic.tasks import Task

FORMATS = ("auto", "text", "jsonl", "parquet")
TOKENIZERS = ("bpe", "byte", "pretrained", "synthetic")
DOCUMENTS = ("auto", "bos", "eos", "bos_eos", "")
MARKUP = ("text", "tokens", "with_ends")
SPLITS = ("train", "validation", "test")
VERIFY = ("full", "sizes")
BYTE_VOCAB = 257  # The 256 bytes and the end of text.

_MOST_BYTES = 1 << 40
_MOST_TOKENS = 1 << 24  # of a row
_FINGERPRINT = re.compile(r"[0-9a-f]{12}")
_CORPUS_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def _require(ok: bool, path: str, value: Any, allowed: str) -> None:
  if not ok:
    raise ValueError(f"config.data.{path} is {value!r}; {allowed}")


class SettingNames(NamedTuple):
  """The full names of the settings of one corpus, which error messages tell the user to change."""

  source: str
  format: str
  field: str

  @classmethod
  def of_corpus(cls, name: str) -> "SettingNames":
    """Returns the names that the settings of the corpus `name` have in a config."""
    return cls(*[f"config.data.corpora.{name}.{setting}" for setting in cls._fields])


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
  """One corpus of a mixture.

  Attributes:
    source: `python-stdlib`; or a file, folder or glob, also of gs://; or `tfds:NAME[/CONFIG]`;
      or `synthetic:TASK[?SETTING=VALUE&...]`, see `resjax.data.synthetic.tasks`.
    format: one of `FORMATS`; `auto` goes by what files hold, `jsonl` is JSON of any layout.
    field: the field of JSON objects, Parquet column, or TFDS feature that holds the text.
    weight: the share of the training rows, relative to the other corpora; 0: there is no such
      corpus, as if it were not named.
  """

  source: str
  format: str = "auto"
  field: str = "text"
  weight: float = 1.0

  def check(self, name: str) -> None:
    """Raises ValueError if a setting of the corpus called `name` is out of range."""
    path = f"corpora.{name}"
    check_types(self, f"config.data.{path}")
    _require(bool(self.source), f"{path}.source", self.source, "name a source of text")
    one_of = f"allowed: {', '.join(FORMATS)}"
    _require(self.format in FORMATS, f"{path}.format", self.format, one_of)
    _require(bool(self.field), f"{path}.field", self.field, "name a field")
    good = self.weight >= 0 and math.isfinite(self.weight)
    allowed = "it must be positive and finite, or 0, which leaves the corpus out"
    _require(good, f"{path}.weight", self.weight, allowed)


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """How text becomes tokens.

  Attributes:
    name: one of `TOKENIZERS`.
    vocab_size: V. `bpe` may grow to this size, and a small corpus gives fewer tokens; the embedding
      of a `pretrained` model has this many rows; `synthetic` has the symbols of its task and the
      end of text; `byte` ignores it and has `BYTE_VOCAB` tokens.
    train_bytes: the number of bytes of text that `bpe` learns its merges from.
    folder: the folder with tokenizer.json and config.json of a `pretrained` tokenizer.
    documents: what stands around a document, one of `DOCUMENTS`, see `documents.tokens_around`; the
      other tokenizers have one token that separates documents. Empty: rows as releases without this
      setting built them, for their runs.
    markup: whether texts become the special tokens that they spell, such as a chat's: `text`, they
      do not; `tokens`, but for those around documents; `with_ends`, these too.
  """

  name: str = "bpe"
  vocab_size: int = 8192
  train_bytes: int = 20_000_000
  folder: str = ""
  documents: str = DOCUMENTS[0]
  markup: str = MARKUP[0]

  def __post_init__(self):
    check_types(self, "config.data.tokenizer", {"train_bytes": _MOST_BYTES})
    one_of = f"allowed: {', '.join(TOKENIZERS)}"
    _require(self.name in TOKENIZERS, "tokenizer.name", self.name, one_of)
    large = self.name != "bpe" or self.vocab_size >= BYTE_VOCAB
    at_least = f"bpe needs at least {BYTE_VOCAB}: 256 bytes and the end of text"
    _require(large, "tokenizer.vocab_size", self.vocab_size, at_least)
    _require(self.train_bytes > 0, "tokenizer.train_bytes", self.train_bytes, "at least 1")
    named = bool(self.folder) == (self.name == "pretrained")
    needs = "tokenizer.name='pretrained' needs the folder of a Hugging Face model, others none"
    _require(named, "tokenizer.folder", self.folder, needs)
    one_of = f"allowed: {', '.join(DOCUMENTS[:-1])}"
    _require(self.documents in DOCUMENTS, "tokenizer.documents", self.documents, one_of)
    one_of = f"allowed: {', '.join(MARKUP)}"
    _require(self.markup in MARKUP, "tokenizer.markup", self.markup, one_of)
    has = self.markup == MARKUP[0] or (self.name == "pretrained" and bool(self.documents))
    needs = "only a pretrained tokenizer has special tokens beside the end of text; set 'text'"
    _require(has, "tokenizer.markup", self.markup, needs)

  @property
  def vocab_limit(self) -> int:
    """The largest V that the tokenizer can have, which is known before the data are built."""
    return BYTE_VOCAB if self.name == "byte" else self.vocab_size


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """What to train on, and how the text is cut into rows.

  Attributes:
    root: the folder of built corpora, tokenizers and rows, which all runs share. Of a root at gs://
      every machine keeps a copy, see `resjax.data.mirror.local`.
    seq_len: T, the number of tokens in a row.
    corpora: pairs of a name and a `CorpusConfig` of a weight above 0, sorted by name. The
      constructor also takes a mapping from names to `CorpusConfig`s, or to mappings with their
      fields.
    tokenizer: how text becomes tokens.
    validation_fraction: the share of the documents, chosen by hash; 0 builds no validation split.
    test_fraction: the same for the test split.
    verify: how built data are compared with their manifests before they are used: `full` reads
      every file; `sizes` takes the sizes of files above 1 MB for enough. Records are compared with
      their checksums whenever they are read.
    built: the fingerprint of built data under `root`, which are taken as they are, without a look
      at the sources; empty: the data of the sources are built unless they exist.
    order_seed: the seed of the order of the training rows; `AS_SEED`: the seed of the run.
  """

  root: str
  seq_len: int
  corpora: tuple[tuple[str, CorpusConfig], ...]
  tokenizer: TokenizerConfig
  validation_fraction: float = 0.02
  test_fraction: float = 0.02
  verify: str = "full"
  built: str = ""
  order_seed: int = AS_SEED  # Records of earlier runs have no such setting.

  def __post_init__(self):
    listed = isinstance(self.corpora, Mapping | tuple)
    _require(listed, "corpora", self.corpora, "it must be a section of corpora by name")
    pairs = self.corpora.items() if isinstance(self.corpora, Mapping) else self.corpora
    named = sorted((name, _corpus(name, value)) for name, value in pairs)
    corpora = tuple((name, corpus) for name, corpus in named if corpus.weight > 0)
    object.__setattr__(self, "corpora", corpora)
    check_types(self, "config.data", {"order_seed": MAX_SEED})
    check_seed(self.order_seed, "config.data.order_seed", AS_SEED)
    _require(bool(self.root), "root", self.root, "name a folder")
    _require(self.seq_len >= 2, "seq_len", self.seq_len, "at least 2 tokens")
    _require(self.seq_len <= _MOST_TOKENS, "seq_len", self.seq_len, f"at most {_MOST_TOKENS:,}")
    needs = "name at least one corpus, with a weight above 0"
    _require(bool(corpora), "corpora", [name for name, _ in named], needs)
    for key in ("validation_fraction", "test_fraction"):
      value = getattr(self, key)
      _require(0 <= value < 1, key, value, "it must lie in [0, 1)")
    one_of = f"allowed: {', '.join(VERIFY)}"
    _require(self.verify in VERIFY, "verify", self.verify, one_of)
    digits = "12 hexadecimal digits, the data_fingerprint in the run.json of a run; '' builds data"
    _require(
      not self.built or bool(_FINGERPRINT.fullmatch(self.built)), "built", self.built, digits
    )
    self._check_task()
    held_out = self.validation_fraction + self.test_fraction
    rest = f"with test_fraction {self.test_fraction} nothing is left to train on"
    _require(held_out < 1, "validation_fraction", self.validation_fraction, rest)

  def _check_task(self) -> None:
    """Raises ValueError unless a synthetic corpus is alone, with its tokenizer and row length."""
    given = [(name, c) for name, c in self.corpora if c.source.startswith(tasks.PREFIX)]
    synthetic = self.tokenizer.name == "synthetic"
    needs = f"corpora of {tasks.PREFIX} sources need it, others another one"
    _require(synthetic == bool(given), "tokenizer.name", self.tokenizer.name, needs)
    if not given:
      return
    name, corpus = given[0]
    alone = "a synthetic source must be the only corpus"
    _require(len(self.corpora) == 1, f"corpora.{name}.source", corpus.source, alone)
    try:
      task = tasks.parse(corpus.source)
    except ValueError as error:
      raise ValueError(f"config.data.corpora.{name}.source: {error}") from None
    vocab_size, seq_len = task.num_symbols + 1, task.length + 1
    has = f"{corpus.source} has {{}}, the end of text included; set that"
    fits = self.tokenizer.vocab_size == vocab_size
    said = has.format(f"{vocab_size} tokens")
    _require(fits, "tokenizer.vocab_size", self.tokenizer.vocab_size, said)
    said = has.format(f"rows of {seq_len}")
    _require(self.seq_len == seq_len, "seq_len", self.seq_len, said)

  @property
  def task(self) -> Task | None:
    """The synthetic task; None where the data are text."""
    return tasks.parse(self.corpora[0][1].source) if self.tokenizer.name == "synthetic" else None

  @property
  def splits(self) -> tuple[str, ...]:
    """The splits that are built, in the order of `SPLITS`."""
    fractions = {"validation": self.validation_fraction, "test": self.test_fraction}
    return tuple(split for split in SPLITS if fractions.get(split, 1.0) > 0)


def _corpus(name: str, value: Any) -> CorpusConfig:
  allowed = "lower-case letters, digits, - and _, a letter first (it names folders)"
  is_name = isinstance(name, str) and bool(_CORPUS_NAME.fullmatch(name))
  _require(is_name, "corpora", name, f"names may hold {allowed}")
  if not isinstance(value, CorpusConfig):
    _require(isinstance(value, Mapping), f"corpora.{name}", value, "it must be a section")
    fields = [f.name for f in dataclasses.fields(CorpusConfig)]
    for key in value:
      known = f"not a setting; allowed: {', '.join(fields)}"
      _require(key in fields, f"corpora.{name}", key, known)
    _require("source" in value, f"corpora.{name}", dict(value), "source is missing")
    value = CorpusConfig(**value)
  value.check(name)
  return value
