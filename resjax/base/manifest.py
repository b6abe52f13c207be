"""The manifest of a folder: a file that lists the other files, with sizes and digests, and facts.

The digest is SHA-256. In an object store it is the CRC-32C that the store keeps of each object, so
that no object has to be read back. The facts describe the content of the folder. The manifest has a
digest of itself.
"""

import concurrent.futures
import dataclasses
import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from resjax.base import locations, typed_json
from resjax.base.locations import Location

FILE_NAME = "manifest.json"

# The size in bytes and the digest of each file, by its name relative to the folder.
Files = Mapping[str, tuple[int, str]]

_PARTIAL = f".{FILE_NAME}.partial"
_CHUNK = 1 << 22  # bytes that are read at a time
_THREADS = 8  # hashing releases the interpreter's lock


class Damaged(ValueError):
  """A stored folder is damaged: files are missing or differ from what was written."""


@dataclasses.dataclass(frozen=True)
class Manifest:
  """What the manifest of a folder says.

  Attributes:
    files: the files that the folder must have.
    facts: JSON values by name that were written with them.
  """

  files: Files
  facts: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Stored:
  """The content of the file."""

  files: dict[str, tuple[int, str]]
  sha256: str
  facts: dict[str, Any] = dataclasses.field(default_factory=dict)


def write(folder: Location, facts: Mapping[str, Any], *, root: bool = True) -> None:
  """Writes the manifest of a folder, or adds the files that it lacks.

  Args:
    folder: the folder, where nobody else writes.
    facts: JSON values by name, which replace those that are there.
    root: whether files outside its subfolders are listed.
  """
  files = dict(read(folder).files) if (folder / FILE_NAME).exists() else {}
  new = [name for name in _names(folder) if name not in files and (root or "/" in name)]
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
    files.update(zip(new, threads.map(lambda name: _entry(folder / name), new), strict=True))
  # An empty entry would not count in the digest, so that a damaged name of it would go unnoticed.
  content: dict[str, Any] = {"files": files} | ({"facts": facts} if facts else {})
  content["sha256"] = _digest(files, facts)
  locations.write_text(folder / FILE_NAME, json.dumps(content, indent=1))


def check(
  folder: Location,
  within: str = "",
  *,
  contents: bool = True,
  largest: float = math.inf,
  alone: bool = False,
) -> Manifest:
  """Compares a folder with its manifest; several processes share the work and the result.

  Args:
    folder: the folder.
    within: the prefix of the names of the files to compare.
    contents: whether to read the files; if not, only their sizes are compared.
    largest: files with more bytes are not read either.
    alone: whether this process compares the folder without the others.

  Returns:
    The manifest.

  Raises:
    Damaged: a file differs from the manifest, or the manifest is damaged.
    OSError: a file is out of reach.
  """
  manifest = read(folder)
  listed = sorted(manifest.files.items())
  files = {name: entry for name, entry in listed if name.startswith(within)}
  names = list(files)
  index, count = (0, 1) if alone else (jax.process_index(), jax.process_count())
  own = {name: files[name] for name in names[index::count]}
  bad = _first_damage(folder, own, largest if contents else -1)
  number = -1 if bad is None else names.index(bad)
  if count > 1:
    number = int(multihost_utils.process_allgather(np.int32(number)).max())
  if number >= 0:
    raise Damaged(_explain(folder, names[number], files[names[number]][0]))
  return manifest


def read(folder: Location) -> Manifest:
  """Returns the manifest of a folder.

  Raises:
    Damaged: the manifest is missing or damaged.
    OSError: it is out of reach.
  """
  try:
    found = typed_json.read(folder / FILE_NAME, _Stored)
    intact = found.sha256 == _digest(found.files, found.facts)
  except FileNotFoundError:
    raise Damaged(f"{FILE_NAME} is missing") from None
  except (OSError, ValueError) as error:
    _raise_outside(error)
    intact = False
  if not intact:
    raise Damaged(f"{FILE_NAME} was altered")
  for name in found.files:
    try:
      locations.inside(folder, name, f"a file of {FILE_NAME}")
    except ValueError as error:
      raise Damaged(str(error)) from None
  return Manifest(found.files, found.facts)


def is_outside(error: Exception) -> bool:
  """Returns whether an error means that a file is out of reach, not that it is missing or damaged.

  Nothing is known of a file without the right to read it, or on a server that does not answer.
  """
  return isinstance(error, OSError) and error.errno not in (
    None,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENXIO,
  )


def _raise_outside(error: Exception) -> None:
  if is_outside(error):
    raise error


def _first_damage(folder: Location, files: Files, largest: float) -> str | None:
  """Returns the name of the first file that differs from the manifest; None if there is none.

  Of files with more than `largest` bytes only the size is compared.
  """

  def intact(name: str) -> bool:
    path, (size, digest) = folder / name, files[name]
    try:
      return _size(path) == size and (size > largest or _entry(path)[1] == digest)
    except (OSError, ValueError) as error:
      _raise_outside(error)
      return False

  with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
    results = zip(files, threads.map(intact, files), strict=True)
    return next((name for name, good in results if not good), None)


def _explain(folder: Location, name: str, size: int) -> str:
  """Returns in words how a file differs from the manifest."""
  try:
    found, _ = _entry(folder / name)
  except FileNotFoundError:
    return f"{name} is missing"
  except (OSError, ValueError) as error:
    _raise_outside(error)
    return f"{name} is no regular file"
  return f"{name} has {found} bytes of {size}" if found != size else f"{name} was altered"


def _entry(path: Location) -> tuple[int, str]:
  """Returns the size and the digest of a file."""
  if not locations.is_local(path):
    return locations.size_and_digest(path)
  size, digest = 0, hashlib.sha256()
  with locations.open_regular(path) as file:
    while chunk := file.read(_CHUNK):
      size += len(chunk)
      digest.update(chunk)
  return size, digest.hexdigest()


def _size(path: Location) -> int:
  """Returns the size of a file; for a local path it asks the operating system directly."""
  return os.stat(path).st_size if locations.is_local(path) else cast(Any, path.stat()).length


def _digest(files: Files, facts: Mapping[str, Any]) -> str:
  # A manifest without facts is as it was before there were any.
  signed = [sorted(files.items()), facts] if facts else sorted(files.items())
  return hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()


def _names(folder: Location, within: str = "") -> Iterator[str]:
  """Yields the names of all files of a folder but the manifest, in order."""
  for path in sorted(folder.iterdir()):
    if path.is_dir():
      yield from _names(path, f"{within}{path.name}/")
    elif within or path.name not in (FILE_NAME, _PARTIAL):
      yield f"{within}{path.name}"
