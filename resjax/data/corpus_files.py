"""The files of a corpus, on a disk or in an object store, in a fixed order."""

import dataclasses
import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from resjax import locations
from resjax.locations import Location

_SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages"}


@dataclasses.dataclass(frozen=True)
class File:
  """A file of a corpus.

  Attributes:
    path: the path of the file.
    name: its path relative to the folder that was searched.
    size: its size in bytes.
    version: a JSON-like value that changes when the file may have changed.
  """

  path: Location
  name: str
  size: int
  version: Any


@dataclasses.dataclass(frozen=True)
class FoundFiles:
  """The files that a path names.

  Attributes:
    base: the folder that names are relative to.
    is_folder: whether the path is a folder.
    files: the files, sorted; the list is empty where nothing is found.
  """

  base: Location
  is_folder: bool
  files: list[File]


def find(source: str, setting: str) -> FoundFiles:
  """Returns the files that a path names: one file, all files of a folder, or those of a glob.

  The path may be in an object store. Hidden files and installed packages are left out of folders.
  Messages name the `setting` that holds the path.

  Raises:
    ValueError: The kind of object store is not known, or its package is missing.
  """
  place = locations.path(source, setting)
  return _find_local(place) if locations.is_local(place) else _find_remote(place)


def under(base: Path, ending: str = "") -> list[File]:
  """Returns the files under a local folder whose names have this ending."""
  return [_local(path, base) for path in _walk(base) if path.name.endswith(ending)]


def _find_local(place: Path) -> FoundFiles:
  place = place.expanduser().absolute()
  if place.is_dir():
    return FoundFiles(place, True, under(place))
  base = place.parent if place.is_file() else Path.cwd()
  pattern = glob.escape(str(place)) if place.is_file() else str(place)
  names = sorted(glob.glob(pattern, recursive=True))
  return FoundFiles(
    base, False, [_local(Path(name), base) for name in names if os.path.isfile(name)]
  )


def _local(path: Path, base: Path) -> File:
  stat = os.stat(path)
  return File(path, os.path.relpath(path, base), stat.st_size, stat.st_mtime_ns)


def _walk(base: Path) -> Iterator[Path]:
  for folder, subfolders, names in os.walk(base):
    kept = (s for s in subfolders if not s.startswith(".") and s not in _SKIPPED_FOLDERS)
    subfolders[:] = sorted(kept)
    yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _find_remote(place: Location) -> FoundFiles:
  """Finds files in an object store; one listing gives the names, sizes and versions of all."""
  scheme = str(place).partition("://")[0]
  system, root = fsspec.core.url_to_fs(str(place))
  if system.isfile(root):
    base, is_folder, infos = place.parent, False, {root: system.info(root)}
  elif system.isdir(root):
    base, is_folder, infos = place, True, system.find(root, detail=True)
  else:
    bucket = str(place).split("/")[2]
    base, is_folder, infos = place.__class__(f"{scheme}://{bucket}"), False, {}
    if glob.has_magic(root):
      infos = system.glob(root, detail=True)
  files = []
  for name in sorted(infos):
    path, info = place.__class__(f"{scheme}://{name.lstrip('/')}"), infos[name]
    relative = path.relative_to(base)
    hidden = any(part.startswith(".") or part in _SKIPPED_FOLDERS for part in relative.parts)
    is_file = info["type"] == "file" and not name.endswith("/")
    if is_file and not (hidden and is_folder):
      files.append(File(path, relative.as_posix(), info["size"], locations.version_of(info)))
  return FoundFiles(base, is_folder, files)
