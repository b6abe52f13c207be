"""Builds the data of a config in order, text, tokenizer and rows, and finds built data again."""

import dataclasses
import json
from pathlib import Path

from resjax import locations
from resjax.data import mirror, storage, tokenizer
from resjax.data.config import DataConfig
from resjax.data.summary import CorpusSummary, DatasetSummary, SplitSummary


def build(config: DataConfig, progress: storage.Progress = storage.silent) -> DatasetSummary:
  """Builds the data that are missing under `config.root`; returns at once when nothing is missing.

  Each part lies in a folder named by a fingerprint of all that decides its content (files with
  their sizes and times, settings, the parts it is made from), and appears there only when it is
  complete. One process builds at a time, and others wait for it.

  Args:
    config: the data to build.
    progress: is told what is being built.

  Raises:
    ValueError: A corpus is missing, empty or malformed.
  """
  # Imported here because the modules that build import TFDS, which training need not do.
  from resjax.data import packed_rows, text_corpus, tokenizer_training

  root = mirror.local(config.root)
  for name, corpus in config.corpora:  # Checked before any corpus is read, which may take hours.
    locations.path(corpus.source, f"config.data.corpora.{name}.source")
  with storage.exclusive(root):
    corpora = {name: text_corpus.build(name, config, progress) for name, _ in config.corpora}
    learned = tokenizer_training.build(config, corpora, progress)
    rows = {
      name: packed_rows.build(name, config, corpus, learned, progress)
      for name, corpus in corpora.items()
    }
    mark = storage.fingerprint(sorted((name, row_mark) for name, (row_mark, _) in rows.items()))
    summary = DatasetSummary(
      fingerprint=mark,
      seq_len=config.seq_len,
      vocab_size=tokenizer.load(learned[1]).vocab_size,
      tokenizer=learned[1],
      corpora={
        name: _corpus_summary(corpora[name][1], rows[name][1], config.seq_len) for name in rows
      },
      path=root / _name(mark),
    )
    _save(summary, config.root)
  return summary


def _corpus_summary(text: Path, rows: Path, seq_len: int) -> CorpusSummary:
  of_text, of_rows = storage.metadata(text), storage.metadata(rows)
  splits = {}
  for split, counts in of_text["splits"].items():
    packed = of_rows["splits"][split]
    fill = (packed["tokens"] - 1) / (packed["rows"] * seq_len)
    splits[split] = SplitSummary(**counts, **packed, fill=fill)
  return CorpusSummary(splits, of_text["dropped"], text, rows)


def find(root: str, fingerprint: str) -> DatasetSummary | None:
  """Returns the summary of built data without a look at their sources; None if there are none.

  The fingerprint is that of a summary of `build`, here or on another machine. Of a root in an
  object store, rows and tokenizer are copied to this machine; the text is not.
  """
  path = mirror.fetch_file(root, _name(fingerprint))
  if path is None:
    return None
  values = json.loads(path.read_text())
  here = mirror.local(root)
  values["tokenizer"], values["path"] = _fetched(root, values["tokenizer"]), path
  for name, corpus in values["corpora"].items():
    splits = {split: SplitSummary(**counts) for split, counts in corpus["splits"].items()}
    text, rows = here / corpus["text"], _fetched(root, corpus["rows"])
    values["corpora"][name] = CorpusSummary(splits, corpus["dropped"], text, rows)
  return DatasetSummary(**values)


def fetch_texts(root: str, summary: DatasetSummary) -> list[Path]:
  """Copies the documents of all corpora to this machine; returns their folders, [] if one lacks."""
  here = mirror.local(root)
  found = [
    _fetched(root, str(corpus.text.relative_to(here))) for corpus in summary.corpora.values()
  ]
  return found if all(path.exists() for path in found) else []


def _fetched(root: str, name: str) -> Path:
  """Copies the folder KIND/NAME-FINGERPRINT that holds a path of a summary; returns the path."""
  here = mirror.local(root)
  with storage.exclusive(here):
    mirror.fetch(root, "/".join(Path(name).parts[:2]), here / name)
  return here / name


def _name(fingerprint: str) -> str:
  return f"summary-{fingerprint}.json"


def _save(summary: DatasetSummary, root: str) -> None:
  """Writes the summary with paths relative to its own folder."""
  here = summary.path.parent
  values = dataclasses.asdict(summary)
  text = json.dumps(values, indent=2, default=lambda path: str(path.relative_to(here)))
  mirror.write_file(root, summary.path.name, text + "\n")
