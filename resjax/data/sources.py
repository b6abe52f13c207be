"""Where documents come from: Python's standard library, files, TFDS data sets, synthetic tasks."""

import dataclasses
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resjax import locations
from resjax.data import corpus_files, readers
from resjax.data.config import SPLITS, CorpusConfig, SettingNames
from resjax.data.corpus_files import File, FoundFiles
from resjax.data.readers import Document
from resjax.data.synthetic import tasks
from resjax.data.synthetic.alphabet import SyntheticTokenizer

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
    form: `text`, `jsonl`, `parquet` or `tfds`.
  """

  place: Any
  stamps: Any
  documents: Callable[[], Iterator[Document]]
  is_local: bool = True
  settled: bool = False
  form: str = "text"


def open_source(settings: SettingNames, corpus: CorpusConfig, split: str | None = None) -> Source:
  """Finds the documents of a corpus; messages tell the names of its settings.

  Args:
    settings: the names of the settings of the corpus.
    corpus: where the documents are, and in what form.
    split: the split that is read. Of files it is a folder of this name, or those with this word in
      their names, such as validation-00000-of-00002.parquet. Default: of TFDS `train`, which leaves
      the other ones held out; of files all.

  Raises:
    ValueError: There are no documents, or none in the format or the split asked for.
  """
  made = corpus.source.startswith(tasks.PREFIX)
  if split is not None and (made or corpus.source == STDLIB):
    raise ValueError(f"{settings.source}: {corpus.source} has no split {split!r}; leave it out")
  if corpus.source == STDLIB:
    return _stdlib()
  if made:
    return _synthetic(corpus.source)
  if corpus.source.startswith(TFDS):
    return _tfds(corpus, settings, split or "train")
  return _files(corpus, settings, split)


def splits_of_files(place: str, setting: str, *, of_text: bool) -> list[str]:
  """Returns which of the usual splits the files of a folder or glob name, in a fixed order.

  Args:
    place: the folder, the glob or a file.
    setting: the name of the setting that holds it, for messages.
    of_text: whether files of plain text count too, where such a word may mean something else.
  """
  ends = tuple(end for ends in _ENDINGS.values() for end in ends)
  found = corpus_files.find(place, setting).files
  names = [_words(file) for file in found if of_text or file.name.endswith(ends)]
  return [split for split in SPLITS if any(split in words for words in names)]


def _stdlib() -> Source:
  base = Path(sysconfig.get_path("stdlib"))
  found = corpus_files.under(base, ".py")
  if not found:
    raise ValueError(f"{STDLIB}: no .py files under {base}; name another source")

  def documents() -> Iterator[Document]:
    for file in found:
      yield from readers.read_text(file.path, file.name)

  return Source([STDLIB, str(base)], _stamps(found), documents, settled=_settled(found))


def _synthetic(source: str) -> Source:
  words = SyntheticTokenizer(source)

  def documents() -> Iterator[Document]:
    for index in range(words.task.count):
      yield Document(f"{source}#{index}", words.spell(words.task.document(index)))

  return Source([source], [tasks.VERSION], documents, settled=True)


def _files(corpus: CorpusConfig, settings: SettingNames, split: str | None) -> Source:
  found = corpus_files.find(corpus.source, settings.source)
  if split is not None:
    found = _of_split(found, split, corpus.source, settings)
  if not found.files:
    what = "a folder without files" if found.is_folder else "no file or folder, and matches none"
    kinds = f"allowed: {STDLIB}, a file, folder or glob of text, {TFDS}NAME[/CONFIG], "
    kinds += f"{tasks.PREFIX}TASK"
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
  return Source(place, _stamps(chosen), documents, is_local, _settled(chosen), kind)


def _of_split(found: FoundFiles, split: str, source: str, settings: SettingNames) -> FoundFiles:
  """Returns the files of a split: those of its folder, else those with its word in their names."""
  inside = [file for file in found.files if file.name.startswith(f"{split}/")]
  chosen = inside or [file for file in found.files if split in _words(file)]
  if found.files and not chosen:
    names = [_name(file) for file in found.files[:3]]
    more = f" and {len(found.files) - 3} more" if len(found.files) > 3 else ""
    raise ValueError(
      f"{settings.source}: {corpus_files.spelled(source)} has no split {split!r}: no folder of "
      f"this name and no file with this word in its name ({', '.join(names)}{more})"
    )
  return dataclasses.replace(found, files=chosen)


def _words(file: File) -> list[str]:
  return re.split(r"[-_.]", _name(file))


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


def _tfds(corpus: CorpusConfig, settings: SettingNames, split: str) -> Source:
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
    wanted = split if kind == "split" else corpus.field
    if wanted not in have:
      raise ValueError(
        f"{settings.source}: TFDS {name} has no {kind} {wanted!r}; it has {sorted(have)}"
      )
  if not isinstance(builder.info.features[corpus.field], tfds.features.Text):
    raise ValueError(f"{settings.field}: feature {corpus.field!r} of TFDS {name} is not text")
  records = builder.as_data_source(split)

  def documents() -> Iterator[Document]:
    for index in range(len(records)):
      raw = records[index][corpus.field]
      yield Document(f"{name}:{index}", _decode(raw))

  found = corpus_files.find(str(builder.data_path), settings.source)
  place, is_local = [TFDS, str(builder.data_path), corpus.field], locations.is_local(found.base)
  return Source(place, _stamps(found.files), documents, is_local, _settled(found.files), "tfds")


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
