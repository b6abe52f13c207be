"""The files of a corpus, on a disk or in an object store, in a fixed order."""

import dataclasses
import glob
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
from absl import logging

from resjax.base import Location, locations
from resjax.data import dropped

_TICK_NS = 2_000_000_000  # The longest tick of the times of any file system in use.
_SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages"}


@dataclasses.dataclass(frozen=True)
class File:
  """A file of a corpus.

  Attributes:
    path: the path of the file.
    name: its path relative to the folder that was searched, as `spelled` writes it.
    size: its size in bytes.
    version: a JSON-like value that changes when the content may have changed: times and number of a
      local file, else the checksum that the object store keeps, or its version of the object.
    settled: whether a change that comes now will change the version. Times have ticks, so that a
      file that was written a moment ago may change without another time.
  """

  path: Location
  name: str
  size: int
  version: Any
  settled: bool


@dataclasses.dataclass(frozen=True)
class FoundFiles:
  """The files that a path names.

  Attributes:
    base: the folder that names are relative to.
    is_folder: whether the path is a folder.
    files: the files, sorted; the list is empty where nothing is found.
    skipped: the names of what else there is in the folder or glob, such as pipes.
  """

  base: Location
  is_folder: bool
  files: list[File]
  skipped: Sequence[str] = ()


def find(source: str, setting: str) -> FoundFiles:
  """Returns the files that a path names: one file, all files of a folder, or all matches of a glob.

  The path may be in an object store. Hidden files and installed packages are left out of folders.
  What is no regular file (a pipe, a socket, a device, a link that leads nowhere) is left out of
  folders and globs with a warning. Messages name the `setting` that holds the path.

  Raises:
    ValueError: The kind of object store is not known, or its package is missing; or the path is
      neither a regular file nor a folder.
  """
  place = locations.path(source, setting)
  return _find_local(place, setting) if locations.is_local(place) else _find_remote(place)


def under(base: Path, ending: str = "") -> list[File]:
  """Returns the files under a local folder whose names have this ending."""
  return _regular([path for path in _walk(base) if path.name.endswith(ending)], base)[0]


def spelled(name: object) -> str:
  """Returns the name of a file in one line of valid Unicode; other bytes are spelled \\xNN."""
  text = os.fsencode(str(name)).decode(errors="backslashreplace")
  return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _find_local(place: Path, setting: str) -> FoundFiles:
  place = Path(os.path.expanduser(place)).absolute()
  if place.is_dir():
    return FoundFiles(place, True, *_regular(_walk(place), place))
  if place.is_file():
    return FoundFiles(place.parent, False, *_regular([place], place.parent))
  if os.path.lexists(place):
    raise ValueError(
      f"{setting}: {spelled(place)} is no regular file but a pipe, a socket, a device or a link "
      "that leads nowhere; give a file or a folder"
    )
  paths = [path for path in _glob(place) if not path.is_dir()]
  return FoundFiles(Path.cwd(), False, *_regular(paths, Path.cwd()))


def _glob(place: Path) -> list[Path]:
  """Returns the paths that a pattern matches, sorted; `**` follows no link, which may be a circle.

  As in shells, wildcards match no names with a dot in front, and `**` inside a name is `*`.
  """
  parts = [re.sub(r"\*\*+", "*", part) if part != "**" else part for part in place.parts]
  fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
  if fixed == len(parts):
    return []
  wanted = [*parts[fixed:], *(["*"] if parts[-1] == "**" else [])]
  base, dotted = Path(*parts[:fixed]), any(part.startswith(".") for part in wanted)
  found = base.glob("/".join(wanted))
  kept = (
    path
    for path in found
    if dotted or not any(part.startswith(".") for part in path.relative_to(base).parts)
  )
  return sorted(kept, key=str)


def _regular(paths: Iterable[Path], base: Path) -> tuple[list[File], list[str]]:
  """Returns the regular files, and the names of what else there is, of which it warns."""
  found, skipped = [], []
  for path in paths:
    try:
      state = os.stat(path)
    except OSError:  # a link that leads nowhere or in a circle, or a file that was just deleted
      skipped.append(path)
      continue
    if stat.S_ISREG(state.st_mode):
      version = [state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
      now = time.time_ns()
      settled = all(abs(now - at) > _TICK_NS for at in version[:2])
      name = spelled(os.path.relpath(path, base))
      found.append(File(path, name, state.st_size, version, settled))
    else:
      skipped.append(path)
  names = [spelled(os.path.relpath(path, base)) for path in skipped]
  if names:
    what = f"{spelled(base)} has what is no regular file and left out of the corpus"
    logging.warning("%s: %s", what, dropped.listed(names, len(names)))
  return found, names


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
      version = _checksum(info)
      name_here = spelled(relative.as_posix())
      files.append(File(path, name_here, info["size"], version, bool(version)))
  if is_folder:
    files.sort(key=_walked)
  return FoundFiles(base, is_folder, files)


def _walked(file: File) -> list[tuple[bool, str]]:
  """Returns a key that sorts objects as `_walk` sorts files: in each folder, files come first."""
  *folders, name = file.name.split("/")
  return [*((True, folder) for folder in folders), (False, name)]


def _checksum(info: Mapping[str, Any]) -> str:
  """Returns the checksum that a store has for an object, else its version, or an empty text."""
  keys = ("md5Hash", "crc32c", "blob_id", "ETag", "etag", "generation", "mtime", "last_modified")
  return next((f"{key} {info[key]}" for key in keys if info.get(key)), "")
