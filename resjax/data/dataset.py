"""Builds the data of a config in order, text, tokenizer and rows, and finds built data again."""

import contextlib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from absl import logging

from resjax.base import Damaged, locations
from resjax.data import built, mirror, storage, summary, tokenizer
from resjax.data.config import DataConfig, TokenizerConfig
from resjax.data.summary import CorpusSummary, DatasetSummary, SplitSummary, StoredSummary
from resjax.data.text_digest import TextDigest

Check = Callable[[str, Mapping[str, TextDigest]], None]
"""Is called with the fingerprint of data before they are built, and their digests by corpus."""


def build(
  config: DataConfig, progress: storage.Progress = storage.silent, check: Check | None = None
) -> DatasetSummary:
  """Builds the data that are missing or damaged under `config.root`; compares existing ones.

  Each part lies in a folder named by a fingerprint of all that decides its content (the documents
  of a corpus in order, settings, the parts it is made from), and appears there only when it is
  complete. One process builds at a time, and others wait for it. What is there is compared with its
  manifest as `config.verify` says. With `config.built` nothing is built, and the sources need not
  be there.

  Args:
    config: the data to build.
    progress: is called with the name of the part that is being built.
    check: ends the build before anything is built by raising an error; of data that `config.built`
      names it is called with no documents.

  Raises:
    ValueError: A corpus is missing, empty or malformed; or the disk is full; or the data that
      `config.built` names are not there, or are no data of this config.
  """
  check = check or (lambda fingerprint, texts: None)
  if config.built:
    check(config.built, {})
    return _taken(config)
  # Imported here because the modules that build import TFDS, which training need not do.
  from resjax.data import packed_rows, text_corpus, tokenizer_training

  root = mirror.local(config.root)
  # Checked before any corpus is read, which may take hours.
  for name, corpus in config.corpora:
    locations.path(corpus.source, f"config.data.corpora.{name}.source")
  sources = {name: text_corpus.opened(name, config) for name, _ in config.corpora}
  planned = tokenizer_training.plan(config)
  with storage.exclusive(root) as locked:
    if locked:
      built.sweep(root)
    texts = {
      name: text_corpus.digest(name, source, config.root, progress)
      for name, source in sources.items()
    }
    marks = {name: text_corpus.identity(text, config) for name, text in texts.items()}
    words = planned.identity(marks.values())
    row_marks = [(name, packed_rows.identity(config, marks[name], words)) for name in sorted(marks)]
    mark = storage.fingerprint(row_marks)
    check(mark, texts)
    corpora = {
      name: text_corpus.build(name, config, progress, text) for name, text in texts.items()
    }
    learned = tokenizer_training.build(config, planned, corpora, progress)
    rows = {
      name: packed_rows.build(name, config, corpus, learned, progress)
      for name, corpus in corpora.items()
    }
    found = DatasetSummary(
      fingerprint=mark,
      seq_len=config.seq_len,
      vocab_size=tokenizer.of_data(learned[1]).vocab_size,
      tokenizer=learned[1],
      corpora={
        name: _corpus_summary(corpora[name][1], rows[name][1], config.seq_len) for name in rows
      },
      path=root / _name(mark),
    )
    _save(found, config.root)
  return found


def _corpus_summary(text: Path, rows: Path, seq_len: int) -> CorpusSummary[Path]:
  of_text, of_rows = built.facts(text.parents[1]), built.facts(rows.parents[1])
  splits = {}
  for split, facts in of_text.splits.items():
    packed = of_rows.splits[split].counts
    fill = (packed["tokens"] - 1) / (packed["rows"] * seq_len)
    splits[split] = SplitSummary(**facts.counts, **packed, fill=fill)
  return CorpusSummary(splits, of_text.dropped, text, rows)


def find(
  root: str, fingerprint: str, verify: str = "full", checked: Collection[str] = ()
) -> DatasetSummary | None:
  """Returns the summary of built data without a look at their sources; None if there are none.

  The fingerprint is that of a summary of `build`, here or on another machine. Of a root in an
  object store, rows and tokenizer are copied to this machine; the text is not. Nothing is written
  elsewhere.

  Args:
    root: `DataConfig.root`.
    fingerprint: names the data.
    verify: `DataConfig.verify`.
    checked: what `stamps` returned to a process that has compared all files.

  Raises:
    Damaged: A part is missing, or differs from its manifest.
    ValueError: The summary names something else than parts under the root.
  """
  stored = _stored(root, fingerprint)
  if stored is None:
    return None
  here = mirror.local(root)
  path = here / _name(fingerprint)
  _part(root, stored.tokenizer, built.TOKENIZERS, path, verify, checked)
  corpora, marks = {}, []
  for name, corpus in sorted(stored.corpora.items()):
    built.folder_name(root, corpus.text, built.CORPORA, f"{path}: corpora.{name}.text")
    facts = _part(root, corpus.rows, built.ROWS, path, verify, checked)
    if (facts.seq_len, facts.vocab_size) != (stored.seq_len, stored.vocab_size):
      raise Damaged(
        f"{path} does not fit {here / corpus.rows}: another T or V; build the data anew"
      )
    marks.append((name, facts.fingerprint))
    corpora[name] = CorpusSummary(
      corpus.splits, corpus.dropped, here / corpus.text, here / corpus.rows
    )
  if stored.fingerprint != fingerprint or storage.fingerprint(marks) != fingerprint:
    raise Damaged(f"{path} is the summary of other data; build the data anew")
  return DatasetSummary(
    fingerprint=fingerprint,
    seq_len=stored.seq_len,
    vocab_size=stored.vocab_size,
    tokenizer=here / stored.tokenizer,
    corpora=corpora,
    path=path,
  )


def find_texts(root: str, fingerprint: str, verify: str = "full") -> list[Path] | None:
  """Returns the folders of the documents of all corpora; None if there is no summary of such data.

  They are copied to this machine where the root is in an object store. Takes the arguments of
  `find` and raises its errors.
  """
  stored = _stored(root, fingerprint)
  if stored is None:
    return None
  here, texts = mirror.local(root), [corpus.text for _, corpus in sorted(stored.corpora.items())]
  for text in texts:
    _part(root, text, built.CORPORA, here / _name(fingerprint), verify)
  return [here / text for text in texts]


def parts(root: str, fingerprint: str) -> list[str]:
  """Returns the folders KIND/NAME-FINGERPRINT that a summary names; none without such a summary.

  Raises:
    ValueError: It is damaged, or names something else than folders under the root.
  """
  stored = _stored(root, fingerprint)
  if stored is None:
    return []
  named = [(stored.tokenizer, built.TOKENIZERS)]
  for corpus in stored.corpora.values():
    named += [(corpus.text, built.CORPORA), (corpus.rows, built.ROWS)]
  return [built.folder_name(root, name, kind, _name(fingerprint)) for name, kind in named]


def stamps(found: DatasetSummary) -> list[str]:
  """Returns what tells another process, on any machine, that it sees the files of this one."""
  folders = [found.tokenizer.parent]
  folders += [corpus.rows.parents[1] for corpus in found.corpora.values()]
  return [built.stamp(folder) for folder in folders]


def _stored(root: str, fingerprint: str) -> StoredSummary | None:
  """Returns the stored summary of a data set; None if there is no such file."""
  if not re.fullmatch("[0-9a-f]{12}", fingerprint):
    raise ValueError(f"the fingerprint of data is {fingerprint!r}; allowed: 12 hexadecimal digits")
  with _copying(root):
    path = mirror.fetch_file(root, _name(fingerprint))
    if path is None:
      return None
    try:
      return summary.read(path)
    except Damaged:
      if not mirror.is_mirrored(root):
        raise
      path = mirror.fetch_file(root, _name(fingerprint), anew=True)
      return summary.read(path) if path else None


def _part(
  root: str, name: str, kind: str, path: Path, verify: str, checked: Collection[str] = ()
) -> built.Facts:
  with _copying(root):
    return built.find(root, built.folder_name(root, name, kind, str(path)), verify, checked)


def _taken(config: DataConfig) -> DatasetSummary:
  """Returns the data that `config.built` names."""
  names = f"config.data.built={config.built}"
  found = find(config.root, config.built, config.verify)
  if found is None:
    raise ValueError(
      f"{names}: there is no {_name(config.built)} in config.data.root={config.root}; copy that "
      "folder from the machine that built the data, or leave config.data.built empty"
    )
  have = {
    "seq_len": found.seq_len,
    "corpora": sorted(found.corpora),
    "tokenizer.name": found.tokenizer.parent.name.rpartition("-")[0],
  }
  wanted = [config.seq_len, sorted(name for name, _ in config.corpora), config.tokenizer.name]
  for (key, value), want in zip(have.items(), wanted, strict=True):
    if value != want:
      raise ValueError(f"{names} has {key} {value}, and config.data.{key} is {want}; set the same")
  if not _has_size(found, config.tokenizer):
    raise ValueError(
      f"{names} has a tokenizer of {found.vocab_size} tokens, which is not that of "
      f"config.data.tokenizer.vocab_size={config.tokenizer.vocab_size}; set the same"
    )
  if not set(config.splits) <= set(found.splits):
    lacks = f"has the splits {', '.join(found.splits)} alone"
    raise ValueError(
      f"{names} {lacks}; set config.data.validation_fraction and test_fraction to it"
    )
  return found


def _has_size(found: DatasetSummary, tokenizer: TokenizerConfig) -> bool:
  """Returns whether built data have the vocabulary size that these tokenizer settings give.

  A small corpus yields fewer merges than the settings allow; then the tokenizer's fingerprint,
  which is made of its settings and corpora, decides.
  """
  if found.vocab_size >= tokenizer.vocab_limit or tokenizer.name != "bpe":
    return found.vocab_size == tokenizer.vocab_limit
  from resjax.data import tokenizer_training

  texts = [corpus.text.parents[1] for corpus in found.corpora.values()]
  mark = tokenizer_training.bpe_mark(tokenizer, [text.name.rpartition("-")[2] for text in texts])
  return found.tokenizer.parent.name == f"bpe-{mark}"


def _copying(root: str) -> contextlib.AbstractContextManager:
  """Keeps other processes out of the copy of an object store; a local root is not touched."""
  here = mirror.local(root)
  return storage.exclusive(here) if mirror.is_mirrored(root) else contextlib.nullcontext()


def _name(fingerprint: str) -> str:
  return f"summary-{fingerprint}.json"


def _save(found: DatasetSummary, root: str) -> None:
  """Writes the summary with paths relative to its own folder, unless it is there and the same."""
  text = summary.to_json(found)
  if found.path.is_dir():
    raise ValueError(f"{found.path} is a folder; move it away, and the same command goes on")
  if found.path.exists() and not mirror.holds(found.path, text):
    logging.warning("%s is written anew: it was not as it was written", found.path)
  with built.explained(found.path, ""):
    mirror.write_file(root, found.path.name, text)
