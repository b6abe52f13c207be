"""The format of the files of a corpus: the content decides, and then the name."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from absl import logging

from resjax.base import Location
from resjax.data import dropped, json_text, plain_bytes, readers
from resjax.data.config import CorpusConfig, SettingNames
from resjax.data.corpus_files import File, FoundFiles, spelled

TEXT, JSON, PARQUET = "text", "jsonl", "parquet"
_OBJECT = "json"  # one JSON value that is no document, such as a description of the data
_EMPTY = "empty"
_NO_FILE = "no regular file"

# What names end in that say a format, also in front of the ending of a compressed file.
_ENDINGS = {JSON: (".jsonl", ".ndjson"), _OBJECT: (".json",), PARQUET: (".parquet", ".pq")}
_PARQUET = (b"PAR1", b"PARE")  # how files of Parquet begin, also encrypted ones
_HEAD = 1 << 12  # bytes that are read to see what a file is
_THREADS = 16  # object stores take a while to answer


@dataclasses.dataclass(frozen=True)
class Choice:
  """The files of a corpus that are read.

  Attributes:
    form: `TEXT`, `JSON` or `PARQUET`; `tfds` where there are no files.
    files: the files in this format, in order.
    left_out: the other ones: names, and why.
  """

  form: str
  files: Sequence[File] = ()
  left_out: Sequence[tuple[str, str]] = ()


def claimed(name: str) -> str:
  """Returns the format that the name of a file says; `TEXT` where it says none."""
  name = name.lower()
  end = next((end for end in plain_bytes.ENDINGS if name.endswith(end)), "")
  plain = name.removesuffix(end)
  return next((form for form, ends in _ENDINGS.items() if plain.endswith(ends)), TEXT)


def choose(corpus: CorpusConfig, found: FoundFiles, settings: SettingNames) -> Choice:
  """Returns the files that a corpus consists of, and their format.

  A format that is asked for is that of the files of a glob, or of the one file. Otherwise all files
  are looked at. Beside JSON or Parquet, other files are left out.

  Raises:
    ValueError: The folder holds JSON and Parquet, text and JSON that has no text, or nothing in
      the format asked for; or a file is damaged.
  """
  if corpus.format == TEXT or (corpus.format != "auto" and not found.is_folder):
    return Choice(corpus.format, found.files, [(name, _NO_FILE) for name in found.skipped])
  with ThreadPoolExecutor(_THREADS) as threads:
    forms = list(threads.map(lambda file: _look(file, corpus.field), found.files))
  present = {form: file.name for file, form in reversed([*zip(found.files, forms, strict=True)])}
  form = _form(corpus, present, settings) if corpus.format == "auto" else corpus.format
  if form == JSON and form not in present and _OBJECT in present:
    form = _OBJECT  # the reader says which fields it has
  if form not in present and form != TEXT:
    raise ValueError(
      f"{settings.source}: no file under {spelled(corpus.source)} holds {form}; set "
      f"{settings.format}"
    )
  # Empty text is counted by those who read it.
  wanted = (TEXT, _EMPTY) if form == TEXT else (form,)
  pairs = list(zip(found.files, forms, strict=True))
  files = [file for file, its in pairs if its in wanted]
  others = [(file.name, its) for file, its in pairs if its not in wanted]
  if names := [name for name, its in others if its != _EMPTY]:
    where = f"{spelled(corpus.source)} is read as {form}, without files in other formats"
    logging.warning("%s: %s", where, dropped.listed(names, len(names)))
  left_out = [(name, "empty" if its == _EMPTY else "other format") for name, its in others]
  left_out += [(name, _NO_FILE) for name in found.skipped]
  return Choice(JSON if form == _OBJECT else form, files, left_out)


def _form(corpus: CorpusConfig, present: Mapping[str, str], settings: SettingNames) -> str:
  """Returns the format of a corpus of files in several ones, by the first file of each.

  Raises:
    ValueError: They cannot be one corpus.
  """
  shown = {form: f"{form} ({name.rpartition('/')[2]})" for form, name in present.items()}
  if PARQUET in present and JSON in present:
    both = f"{shown[JSON]} and {shown[PARQUET]}"
    raise ValueError(f"{settings.source} holds {both}; choose with {settings.format}")
  for form in (PARQUET, JSON):
    if form in present:
      return form
  if _OBJECT in present and TEXT in present:
    raise ValueError(
      f"{settings.source} holds {shown[TEXT]} and {shown[_OBJECT]} without a field "
      f"{corpus.field!r}; set {settings.format}=text to read all files as they stand, or name "
      "those of text alone"
    )
  return _OBJECT if _OBJECT in present else TEXT


def _look(file: File, field: str) -> str:
  """Returns the format of a file: one of the three, `_OBJECT` or `_EMPTY`."""
  said = claimed(file.name)
  try:
    with plain_bytes.opened(file.path) as raw:
      head = first = raw.read(_HEAD)
      while first and not first.strip():
        first = raw.read(_HEAD)
  except UnicodeDecodeError:  # what says that it is UTF-16 is no text
    return said
  if head.startswith(_PARQUET):
    return PARQUET
  if not first and said != PARQUET:  # whose reader says that it is damaged
    return _EMPTY
  if first.strip()[:1] not in (b"{", b"["):
    return said
  found = _json(file.path, field)
  return JSON if found and said == JSON else found or said


def _json(path: Location, field: str) -> str:
  """Returns `JSON` of a file with objects, `_OBJECT` of one other; empty: it is not JSON."""
  try:
    with plain_bytes.opened(path) as raw:
      objects = readers.objects(raw, spelled(path))
      values = [value for _, value in itertools.islice(objects, 2)]
  except json_text.NotJsonError:
    return ""
  except ValueError:  # its first values are longer than a document may be
    return _OBJECT
  if not all(isinstance(value, dict) for value in values):
    return ""
  alone = len(values) < 2 and not any(field in value for value in values)
  return _OBJECT if alone else JSON
