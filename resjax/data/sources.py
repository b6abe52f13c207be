"""Where documents come from: the standard library, files, or another TFDS dataset."""

import dataclasses
import glob
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resjax.data import readers
from resjax.data.config import CorpusConfig
from resjax.data.readers import Document

STDLIB = "python-stdlib"
TFDS = "tfds:"

_ENDINGS = {"jsonl": (".jsonl", ".ndjson", ".jsonl.gz", ".json.gz"), "parquet": (".parquet", ".pq")}
_SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages"}
_PIECES = 100  # that a corpus of one text file is cut into
_MIN_PIECE = 4096  # characters


@dataclasses.dataclass(frozen=True)
class Source:
  """Documents in a fixed order.

  Attributes:
    identity: JSON-like; changes when the documents may have changed.
    documents: starts reading from the first document, as often as it is called.
  """

  identity: Any
  documents: Callable[[], Iterator[Document]]


def open_source(name: str, corpus: CorpusConfig) -> Source:
  """Finds the documents of the corpus called `name`.

  Raises:
    ValueError: there are none, or not in the format asked for.
  """
  if corpus.source == STDLIB:
    return _stdlib()
  knob = f"config.data.corpora.{name}"
  if corpus.source.startswith(TFDS):
    return _tfds(corpus, knob)
  return _files(corpus, knob)


def _stdlib() -> Source:
  base = Path(sysconfig.get_path("stdlib"))
  paths = [path for path in _walk(base) if path.suffix == ".py"]
  if not paths:
    raise ValueError(f"{STDLIB}: no .py files under {base}; name other text in config.data.corpora")

  def documents() -> Iterator[Document]:
    for path in paths:
      yield from readers.read_text(path, str(path.relative_to(base)))

  return Source([STDLIB, sys.version, _stamps(paths, base)], documents)


def _files(corpus: CorpusConfig, knob: str) -> Source:
  base, paths = _find(corpus, knob)
  kind, paths = _choose_format(corpus, paths, knob)
  alone = len(paths) == 1
  piece = min(max(paths[0].stat().st_size // _PIECES, _MIN_PIECE), readers.MAX_PIECE)

  def documents() -> Iterator[Document]:
    for path in paths:
      name = os.path.relpath(path, base)
      if kind == "text":
        yield from readers.read_text(path, name, piece if alone else readers.MAX_PIECE)
      elif kind == "jsonl":
        yield from readers.read_jsonl(path, name, corpus.field, knob)
      else:
        yield from readers.read_parquet(path, name, corpus.field, knob)

  return Source([str(base), kind, corpus.field, _stamps(paths, base)], documents)


def _find(corpus: CorpusConfig, knob: str) -> tuple[Path, list[Path]]:
  """Returns (folder that the names are relative to, sorted files)."""
  source = Path(corpus.source).expanduser().absolute()
  if source.is_dir():
    base, paths = source, list(_walk(source))
  else:
    base = source.parent if source.is_file() else Path.cwd()
    pattern = glob.escape(str(source)) if source.is_file() else str(source)
    paths = [Path(p) for p in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(p)]
  if not paths:
    what = "a folder without files" if source.is_dir() else "no file or folder, and matches none"
    kinds = f"allowed: {STDLIB}, a file, folder or glob of text, {TFDS}NAME[/CONFIG]"
    raise ValueError(f"{knob}.source: {source} is {what}; {kinds}")
  return base, paths


def _choose_format(corpus: CorpusConfig, paths: list[Path], knob: str) -> tuple[str, list[Path]]:
  """Returns (format, the files in it); `auto` wants one kind beside any text files."""
  by_kind = {kind: [p for p in paths if p.name.endswith(ends)] for kind, ends in _ENDINGS.items()}
  if corpus.format == "auto":
    present = [kind for kind, found in by_kind.items() if found]
    if len(present) > 1:
      both = " and ".join(f"{kind} ({by_kind[kind][0].name})" for kind in present)
      raise ValueError(f"{knob}.source holds {both}; choose with {knob}.format")
    kind = present[0] if present else "text"
    return kind, by_kind.get(kind, paths)
  in_folder = Path(corpus.source).expanduser().is_dir()
  if not in_folder or corpus.format == "text":
    return corpus.format, paths
  if not by_kind[corpus.format]:
    ends = ", ".join(_ENDINGS[corpus.format])
    raise ValueError(f"{knob}.source: no {ends} files under {corpus.source}; set {knob}.format")
  return corpus.format, by_kind[corpus.format]


def _tfds(corpus: CorpusConfig, knob: str) -> Source:
  """The `train` split only, so that the dataset's own held-out splits stay held out."""
  import tensorflow_datasets as tfds

  name = corpus.source.removeprefix(TFDS)
  try:
    builder = tfds.builder(name)
    builder.download_and_prepare(file_format="array_record")
  except tfds.core.registered.DatasetNotFoundError as error:
    raise ValueError(f"{knob}.source: TFDS knows no dataset {name!r}") from error
  except ModuleNotFoundError as error:
    needs = f"TFDS {name} needs the package {error.name!r}; install it"
    raise ValueError(f"{knob}.source: {needs}") from error
  if builder.info.file_format.value != "array_record":
    here = f"{builder.data_path} holds {builder.info.file_format.value}"
    raise ValueError(f"{knob}.source: {here}; only array_record is read: prepare it anew")
  for kind, have in (("split", builder.info.splits), ("feature", builder.info.features)):
    wanted = "train" if kind == "split" else corpus.field
    if wanted not in have:
      raise ValueError(f"{knob}: TFDS {name} has no {kind} {wanted!r}; it has {sorted(have)}")
  if not isinstance(builder.info.features[corpus.field], tfds.features.Text):
    raise ValueError(f"{knob}.field: feature {corpus.field!r} of TFDS {name} is not text")
  records = builder.as_data_source("train")

  def documents() -> Iterator[Document]:
    for index in range(len(records)):
      raw = records[index][corpus.field]
      yield Document(f"{name}:{index}", _decode(raw))

  train = builder.info.splits["train"]
  identity = [TFDS, str(builder.data_path), corpus.field, train.num_examples, train.num_bytes]
  return Source(identity, documents)


def _decode(raw: bytes) -> str | None:
  try:
    return raw.decode()
  except UnicodeDecodeError:
    return None


def _walk(base: Path) -> Iterator[Path]:
  """Yields the files under `base` in a fixed order: no hidden ones, no installed packages."""
  for folder, subfolders, names in os.walk(base):
    kept = (s for s in subfolders if not s.startswith(".") and s not in _SKIPPED_FOLDERS)
    subfolders[:] = sorted(kept)
    yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _stamps(paths: list[Path], base: Path) -> list[tuple[str, int, int]]:
  stats = [(os.path.relpath(path, base), os.stat(path)) for path in paths]
  return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
