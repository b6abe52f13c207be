"""Builds the tokenizer of a data config; BPE is learned from an equal share of every corpus."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import grain

from resjax.data import built, pretrained_tokenizer, storage
from resjax.data.config import DataConfig, TokenizerConfig
from resjax.data.pretrained_tokenizer import PretrainedTokenizer
from resjax.data.synthetic.alphabet import SyntheticTokenizer
from resjax.data.tokenizer import BpeTokenizer, ByteTokenizer, Tokenizer, train_bpe

FILE_NAME = "tokenizer.json"
_VERSION = 1  # Grows when the same config and corpora would give another tokenizer.


def build(
  config: DataConfig,
  corpora: Mapping[str, tuple[str, Path]],
  progress: storage.Progress = storage.silent,
) -> tuple[str, Path]:
  """Builds the tokenizer of `config` unless it is built.

  Args:
    config: the tokenizer to build, and the folder of built data.
    corpora: the fingerprint and the folder of records of each built corpus, by name.
    progress: is told the number of bytes of text read.

  Returns:
    The fingerprint of the tokenizer, and its file.
  """
  settings = config.tokenizer
  make: Callable[[], Tokenizer]
  if settings.name == "byte":
    mark, make = storage.fingerprint("byte", _VERSION), ByteTokenizer
  elif config.task:
    [(_, corpus)] = config.corpora
    mark = storage.fingerprint("synthetic", corpus.source, _VERSION)
    make = functools.partial(SyntheticTokenizer, corpus.source)
  elif settings.name == "pretrained":
    found = _pretrained(settings)
    mark, make = storage.fingerprint(found.record, _VERSION), lambda: found
  else:
    mark = bpe_mark(settings, [fingerprint for fingerprint, _ in corpora.values()])
    records = [records for _, (_, records) in sorted(corpora.items())]
    make = functools.partial(_learn, settings, records, progress)

  def fill(folder: Path) -> built.Facts:
    made = make()
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
      f"config.data.tokenizer.vocab_size is {settings.vocab_size}, but config.json of "
      f"{settings.folder} has {found.vocab_size}; set that"
    )
  return found


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
