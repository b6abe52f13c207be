"""The manifest of a checkpoint: a file that lists the other files, with sizes and digests.

The digest is SHA-256. In an object store it is the CRC-32C that the store keeps of each object, so
that no object has to be read back.
"""

import concurrent.futures
import hashlib
import json
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from resjax import locations

FILE_NAME = "manifest.json"

# The size in bytes and the digest of each file, by its name relative to the checkpoint.
Files = Mapping[str, tuple[int, str]]

_PARTIAL = f".{FILE_NAME}.partial"
_CHUNK = 1 << 22  # bytes that are read at a time
_THREADS = 8  # hashing releases the interpreter's lock


class Damaged(ValueError):
  """A checkpoint is not as it was written."""


def write(folder: epath.Path, *, root: bool) -> None:
  """Writes the manifest of a checkpoint, or adds the files that it lacks.

  Args:
    folder: the folder of the checkpoint, where nobody else writes.
    root: whether files outside its subfolders are listed, which Orbax writes after all others.
  """
  files = dict(read(folder)) if (folder / FILE_NAME).exists() else {}
  new = [name for name in _names(folder) if name not in files and (root or "/" in name)]
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
    files.update(zip(new, threads.map(lambda name: _entry(folder / name), new), strict=True))
  content = {"files": files, "sha256": _digest(files)}
  locations.write_text(folder / FILE_NAME, json.dumps(content, indent=1))


def check(folder: epath.Path, within: str = "", *, contents: bool = True) -> None:
  """Compares a checkpoint with its manifest; several processes share the work and the result.

  Args:
    folder: the folder of the checkpoint.
    within: the prefix of the names of the files to compare.
    contents: whether to read the files; if not, only their sizes are compared.

  Raises:
    Damaged: a file, or the manifest, is not as it was written.
  """
  files = {name: entry for name, entry in sorted(read(folder).items()) if name.startswith(within)}
  names = list(files)
  mine = names[jax.process_index() :: jax.process_count()]
  bad = _first_damage(folder, {name: files[name] for name in mine}, contents)
  number = -1 if bad is None else names.index(bad)
  if jax.process_count() > 1:
    number = int(multihost_utils.process_allgather(np.int32(number)).max())
  if number >= 0:
    raise Damaged(_explain(folder, names[number], files[names[number]][0]))


def read(folder: epath.Path) -> Files:
  """Returns the files that a checkpoint must have.

  Raises:
    Damaged: the manifest is missing, or is not as it was written.
  """
  try:
    content = json.loads((folder / FILE_NAME).read_text())
    files = {name: (size, digest) for name, (size, digest) in content["files"].items()}
    intact = content["sha256"] == _digest(files)
  except FileNotFoundError:
    raise Damaged(f"{FILE_NAME} is missing") from None
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    intact = False
  if not intact:
    raise Damaged(f"{FILE_NAME} was altered")
  return files


def _first_damage(folder: epath.Path, files: Files, contents: bool) -> str | None:
  """Returns the name of the first file that is not as it was written; None if there is none."""

  def intact(name: str) -> bool:
    path, (size, digest) = folder / name, files[name]
    try:
      return path.stat().length == size and (not contents or _entry(path)[1] == digest)
    except OSError:
      return False

  with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
    results = zip(files, threads.map(intact, files), strict=True)
    return next((name for name, good in results if not good), None)


def _explain(folder: epath.Path, name: str, size: int) -> str:
  """Returns in words what is wrong with a file."""
  try:
    found, _ = _entry(folder / name)
  except FileNotFoundError:
    return f"{name} is missing"
  except OSError as error:
    return f"{name} cannot be read ({error.strerror or error})"
  return f"{name} has {found} bytes of {size}" if found != size else f"{name} was altered"


def _entry(path: epath.Path) -> tuple[int, str]:
  """Returns the size and the digest of a file."""
  if not locations.is_local(path):
    return locations.size_and_digest(path)
  size, digest = 0, hashlib.sha256()
  with path.open("rb") as file:
    while chunk := file.read(_CHUNK):
      size += len(chunk)
      digest.update(chunk)
  return size, digest.hexdigest()


def _digest(files: Files) -> str:
  return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def _names(folder: epath.Path, within: str = "") -> Iterator[str]:
  """Yields the names of all files of a checkpoint but the manifest, in order."""
  for path in sorted(folder.iterdir()):
    if path.is_dir():
      yield from _names(path, f"{within}{path.name}/")
    elif within or path.name not in (FILE_NAME, _PARTIAL):
      yield f"{within}{path.name}"
