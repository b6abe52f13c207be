"""Builds the tokenizer of a data config; BPE is learned from an equal share of every corpus."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grain

from resjax.data import built, pretrained_tokenizer, storage
from resjax.data.config import DataConfig, TokenizerConfig
from resjax.data.documents import with_documents
from resjax.data.pretrained_tokenizer import PretrainedTokenizer, record_before
from resjax.data.synthetic.alphabet import SyntheticTokenizer
from resjax.data.tokenizer import BpeTokenizer, ByteTokenizer, Tokenizer, train_bpe

FILE_NAME = "tokenizer.json"
_VERSION = 1  # Grows when the same config and corpora would give another tokenizer.


class Plan(NamedTuple):
  """How a tokenizer will be made, known before any text is read.

  Attributes:
    identity: returns its fingerprint, given the fingerprints of the corpora.
    make: makes it from the folders of the records of the corpora; the progress is called with the
      number of bytes of text read.
  """

  identity: Callable[[Iterable[str]], str]
  make: Callable[[list[Path], storage.Progress], Tokenizer]


def plan(config: DataConfig) -> Plan:
  """Returns how the tokenizer of `config` is made.

  Raises:
    ValueError: The folder of a pretrained tokenizer has none, or one of another size.
  """
  settings = config.tokenizer
  if settings.name == "byte":
    return Plan(lambda _: storage.fingerprint("byte", _VERSION), lambda *_: ByteTokenizer())
  if config.task:
    source = config.corpora[0][1].source
    mark = storage.fingerprint("synthetic", source, _VERSION)
    return Plan(lambda _: mark, lambda *_: SyntheticTokenizer(source))
  if settings.name == "pretrained":
    found = _pretrained(settings)
    record = found.record if settings.documents else record_before(found, settings.folder)
    return Plan(lambda _: storage.fingerprint(record, _VERSION), lambda *_: found)
  return Plan(partial(bpe_mark, settings), partial(_learn, settings))


def build(
  config: DataConfig,
  planned: Plan,
  corpora: Mapping[str, tuple[str, Path]],
  progress: storage.Progress = storage.silent,
) -> tuple[str, Path]:
  """Builds the tokenizer of `config` unless it is built.

  Args:
    config: the folder of built data.
    planned: what `plan` returned for `config`.
    corpora: the fingerprint and the folder of records of each built corpus, by name.
    progress: is called with the number of bytes of text read.

  Returns:
    The fingerprint of the tokenizer, and its file.
  """
  settings = config.tokenizer
  mark = planned.identity([fingerprint for fingerprint, _ in corpora.values()])
  records = [records for _, (_, records) in sorted(corpora.items())]

  def fill(folder: Path) -> built.Facts:
    made = planned.make(records, progress)
    made.save(folder / FILE_NAME)
    return built.Facts(built.TOKENIZERS, mark, vocab_size=made.vocab_size)

  name = f"{built.TOKENIZERS}/{settings.name}-{mark}"
  return mark, built.prepare(config.root, name, config.verify, fill, progress) / FILE_NAME


def bpe_mark(settings: TokenizerConfig, corpora: Iterable[str]) -> str:
  """Returns the fingerprint of merges that are learned from corpora of these fingerprints."""
  return storage.fingerprint(settings.vocab_size, settings.train_bytes, sorted(corpora), _VERSION)


def _pretrained(settings: TokenizerConfig) -> PretrainedTokenizer:
  found = pretrained_tokenizer.load_pretrained(settings.folder)
  if found.vocab_size != settings.vocab_size:
    raise ValueError(
      f"config.data.tokenizer.vocab_size is {settings.vocab_size}, but {settings.folder} has "
      f"{found.vocab_size}; set that"
    )
  return with_documents(found, settings.documents, settings.markup)


def _learn(
  settings: TokenizerConfig, records: list[Path], progress: storage.Progress
) -> BpeTokenizer:
  return train_bpe(sample(records, settings.train_bytes, progress), settings.vocab_size)


def sample(
  corpora: list[Path],
  num_bytes: int,
  progress: storage.Progress = storage.silent,
  *,
  split: str = "train",
) -> Iterator[str]:
  """Yields documents of a split in random but fixed order until they have `num_bytes`.

  The next document comes from the corpus that has given the fewest bytes so far. The weights of the
  mixture do not matter, so that a change of a weight does not change the tokenizer.
  """
  streams = []
  for records in corpora:
    documents = grain.MapDataset.source(storage.read(records, split)).seed(0).shuffle()
    streams.append(map(documents.__getitem__, range(len(documents))))
  given = [0] * len(streams)
  done = 0
  while streams and done < num_bytes:
    least = given.index(min(given))
    record = next(streams[least], None)
    if record is None:
      del streams[least], given[least]
      continue
    given[least] += len(record["text"])
    done += len(record["text"])
    progress("learning the tokenizer", min(done, num_bytes), num_bytes)
    yield record["text"].decode()
