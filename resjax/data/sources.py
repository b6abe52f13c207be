"""Where documents come from: the standard library of Python, files, or another TFDS data set."""

import dataclasses
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resjax import locations
from resjax.data import corpus_files, readers
from resjax.data.config import CorpusConfig, SettingNames
from resjax.data.corpus_files import File, FoundFiles
from resjax.data.readers import Document

STDLIB = "python-stdlib"
TFDS = "tfds:"

_ENDINGS = {"jsonl": (".jsonl", ".ndjson", ".jsonl.gz", ".json.gz"), "parquet": (".parquet", ".pq")}
# A corpus of one text file is cut into so many documents, if each has enough characters.
_PIECES = 100
_MIN_PIECE = 4096


@dataclasses.dataclass(frozen=True)
class Source:
  """Documents in a fixed order.

  Attributes:
    place: a JSON-like value that says where and how documents are read.
    stamps: a JSON-like value that changes when the documents may have changed: names, sizes and
      times of files, or checksums of objects. What the documents are, their text alone decides.
    documents: returns an iterator from the first document on, each time it is called.
    is_local: whether the stamps are those of files of this machine.
    settled: whether any later change of the documents will show in the stamps.
  """

  place: Any
  stamps: Any
  documents: Callable[[], Iterator[Document]]
  is_local: bool = True
  settled: bool = False


def open_source(settings: SettingNames, corpus: CorpusConfig) -> Source:
  """Finds the documents of a corpus; messages tell the names of its settings.

  Raises:
    ValueError: There are no documents, or none in the format asked for.
  """
  if corpus.source == STDLIB:
    return _stdlib()
  if corpus.source.startswith(TFDS):
    return _tfds(corpus, settings)
  return _files(corpus, settings)


def _stdlib() -> Source:
  base = Path(sysconfig.get_path("stdlib"))
  found = corpus_files.under(base, ".py")
  if not found:
    raise ValueError(f"{STDLIB}: no .py files under {base}; name another source")

  def documents() -> Iterator[Document]:
    for file in found:
      yield from readers.read_text(file.path, file.name)

  return Source([STDLIB, str(base)], _stamps(found), documents, settled=_settled(found))


def _files(corpus: CorpusConfig, settings: SettingNames) -> Source:
  found = corpus_files.find(corpus.source, settings.source)
  if not found.files:
    what = "a folder without files" if found.is_folder else "no file or folder, and matches none"
    kinds = f"allowed: {STDLIB}, a file, folder or glob of text, {TFDS}NAME[/CONFIG]"
    shown = corpus_files.spelled(corpus.source)
    raise ValueError(f"{settings.source}: {shown} is {what}; {kinds}")
  kind, chosen = _choose_format(corpus, found, settings)
  alone = len(chosen) == 1
  piece = min(max(chosen[0].size // _PIECES, _MIN_PIECE), readers.MAX_PIECE)

  def documents() -> Iterator[Document]:
    for file in chosen:
      if kind == "text":
        yield from readers.read_text(file.path, file.name, piece if alone else readers.MAX_PIECE)
      elif kind == "jsonl":
        yield from readers.read_jsonl(file.path, file.name, corpus.field, settings)
      else:
        yield from readers.read_parquet(file.path, file.name, corpus.field, settings)

  place = [corpus_files.spelled(found.base), corpus.source, kind, corpus.field]
  is_local = locations.is_local(found.base)
  return Source(place, _stamps(chosen), documents, is_local, _settled(chosen))


def _choose_format(
  corpus: CorpusConfig, found: FoundFiles, settings: SettingNames
) -> tuple[str, list[File]]:
  """Returns the format and the files in it; `auto` refuses a folder with JSONL and Parquet."""
  by_kind = {
    kind: [file for file in found.files if file.name.endswith(ends)]
    for kind, ends in _ENDINGS.items()
  }
  if corpus.format == "auto":
    present = [kind for kind, chosen in by_kind.items() if chosen]
    if len(present) > 1:
      both = " and ".join(f"{kind} ({_name(by_kind[kind][0])})" for kind in present)
      raise ValueError(f"{settings.source} holds {both}; choose with {settings.format}")
    kind = present[0] if present else "text"
    return kind, by_kind.get(kind, found.files)
  if not found.is_folder or corpus.format == "text":
    return corpus.format, found.files
  if not by_kind[corpus.format]:
    ends = ", ".join(_ENDINGS[corpus.format])
    raise ValueError(
      f"{settings.source}: no {ends} files under {corpus_files.spelled(corpus.source)}; "
      f"set {settings.format}"
    )
  return corpus.format, by_kind[corpus.format]


def _tfds(corpus: CorpusConfig, settings: SettingNames) -> Source:
  """Returns the documents of the split `train` alone: the other splits stay held out."""
  import tensorflow_datasets as tfds

  name = corpus.source.removeprefix(TFDS)
  try:
    builder = tfds.builder(name)
    builder.download_and_prepare(file_format="array_record")
  except tfds.core.registered.DatasetNotFoundError as error:
    raise ValueError(f"{settings.source}: TFDS knows no dataset {name!r}") from error
  except ModuleNotFoundError as error:
    needs = f"TFDS {name} needs the package {error.name!r}; install it"
    raise ValueError(f"{settings.source}: {needs}") from error
  if builder.info.file_format.value != "array_record":
    here = f"{builder.data_path} holds {builder.info.file_format.value}"
    raise ValueError(f"{settings.source}: {here}; only array_record is read: prepare it anew")
  for kind, have in (("split", builder.info.splits), ("feature", builder.info.features)):
    wanted = "train" if kind == "split" else corpus.field
    if wanted not in have:
      raise ValueError(
        f"{settings.source}: TFDS {name} has no {kind} {wanted!r}; it has {sorted(have)}"
      )
  if not isinstance(builder.info.features[corpus.field], tfds.features.Text):
    raise ValueError(f"{settings.field}: feature {corpus.field!r} of TFDS {name} is not text")
  records = builder.as_data_source("train")

  def documents() -> Iterator[Document]:
    for index in range(len(records)):
      raw = records[index][corpus.field]
      yield Document(f"{name}:{index}", _decode(raw))

  found = corpus_files.find(str(builder.data_path), settings.source)
  place, is_local = [TFDS, str(builder.data_path), corpus.field], locations.is_local(found.base)
  return Source(place, _stamps(found.files), documents, is_local, _settled(found.files))


def _decode(raw: bytes) -> str | None:
  try:
    return raw.decode()
  except UnicodeDecodeError:
    return None


def _stamps(found: list[File]) -> list[tuple[str, int, Any]]:
  return [(file.name, file.size, file.version) for file in found]


def _name(file: File) -> str:
  return file.name.rpartition("/")[2]


def _settled(found: list[File]) -> bool:
  return all(file.settled for file in found)
