"""Where documents come from: Python's standard library, files, TFDS data sets, synthetic tasks."""

import dataclasses
import functools
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resjax.base import locations
from resjax.data import corpus_files, formats, readers
from resjax.data.config import SPLITS, CorpusConfig, SettingNames
from resjax.data.corpus_files import File, FoundFiles
from resjax.data.formats import Choice
from resjax.data.readers import Document
from resjax.data.synthetic import tasks
from resjax.data.synthetic.alphabet import SyntheticTokenizer

STDLIB = "python-stdlib"
TFDS = "tfds:"

_READING = 2  # another number whenever files are read in another way
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
    is_local: whether the stamps describe files of this machine.
    settled: whether any later change of the documents will show in the stamps.
    look: says which of the files are read, and as what; it opens them when it is called first.
  """

  place: Any
  stamps: Any
  documents: Callable[[], Iterator[Document]]
  is_local: bool = True
  settled: bool = False
  look: Callable[[], Choice] = lambda: Choice(formats.TEXT)


def open_source(settings: SettingNames, corpus: CorpusConfig, split: str | None = None) -> Source:
  """Finds the documents of a corpus; messages tell the names of its settings.

  Args:
    settings: the names of the settings of the corpus.
    corpus: where the documents are, and in what form.
    split: the split that is read. Of files it is a folder of this name, or those with this word in
      their names, such as validation-00000-of-00002.parquet. Default: of TFDS `train`, which leaves
      the other ones held out; of files all.

  Raises:
    ValueError: There are no files, or none of the split asked for. That they hold other things than
      text, or text in another format, is said when they are looked at or read.
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
  found = corpus_files.find(place, setting).files
  is_data = [of_text or formats.claimed(file.name) != formats.TEXT for file in found]
  names = [_words(file) for file, counts in zip(found, is_data, strict=True) if counts]
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

  @functools.cache
  def look() -> Choice:
    return formats.choose(corpus, found, settings)

  def documents() -> Iterator[Document]:
    choice = look()
    piece = readers.MAX_PIECE
    if len(choice.files) == 1:
      piece = min(max(choice.files[0].size // _PIECES, _MIN_PIECE), piece)
    for file in choice.files:
      if choice.form == formats.TEXT:
        yield from readers.read_text(file.path, file.name, piece)
      elif choice.form == formats.JSON:
        yield from readers.read_json(file.path, file.name, corpus.field, settings)
      else:
        yield from readers.read_parquet(file.path, file.name, corpus.field, settings)

  place = [_READING, corpus_files.spelled(found.base), corpus.source, corpus.format, corpus.field]
  is_local = locations.is_local(found.base)
  return Source(place, _stamps(found.files), documents, is_local, _settled(found.files), look)


def _of_split(found: FoundFiles, split: str, source: str, settings: SettingNames) -> FoundFiles:
  """Returns the files of a split: its folder's, else those with the split's word in their names."""
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
  stamps, settled = _stamps(found.files), _settled(found.files)
  return Source(place, stamps, documents, is_local, settled, lambda: Choice("tfds"))


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
