"""Files on the local disk or in an object store such as gs://, by the path that a setting gives.

An object store has no folders, no locks, and no way to append to an object; a rename there copies.
An object that is written appears as a whole or not at all.
"""

import contextlib
import functools
import importlib.util
import os
import pathlib
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import fsspec
from etils import epath

# At its first use epath would import TensorFlow where that is installed.
os.environ.setdefault("EPATH_USE_TF", "false")

# A local path is a plain `pathlib` path; those of epath have the same methods.
Location: TypeAlias = pathlib.Path | epath.Path

# The modules that a scheme needs, and the command that installs them. Orbax needs the second one.
_NEEDED = {
  "gs": (("gcsfs", "google.cloud.storage"), "pip install 'resjax[gcs]'"),
  "s3": (("s3fs",), "pip install s3fs"),
  "az": (("adlfs",), "pip install adlfs"),
  "hf": (("huggingface_hub",), "pip install huggingface_hub"),
}
_WRITABLE = ("gs",)  # the schemes of stores where Orbax writes checkpoints


def path(text: str | os.PathLike, knob: str = "path", *, writable: bool = False) -> Location:
  """Returns the location that a setting names.

  Args:
    text: a local path, or that of an object: gs://BUCKET/NAME.
    knob: the name of the setting, for messages.
    writable: whether checkpoints or built data go there.

  Raises:
    ValueError: the object store is not known, its package is missing, or resjax cannot write there.
  """
  found = re.match(r"(\w\w+):/", str(text))
  if not found:
    return pathlib.Path(text)
  scheme = found[1]
  known = [f"{name}://" for name in (_WRITABLE if writable else _NEEDED)]
  if not re.match(r"\w+://[^/]", str(text)) or f"{scheme}://" not in known:
    raise ValueError(
      f"{knob}={str(text)!r} is neither local nor {' or '.join(known)}BUCKET/NAME; mount it (for "
      "instance with gcsfuse) and give the local folder"
    )
  _prepare(scheme, f"{knob}={str(text)!r}")
  return epath.Path(text)


@functools.cache
def _prepare(scheme: str, setting: str) -> None:
  modules, install = _NEEDED[scheme]
  for module in modules:
    if not _installed(module):
      raise ValueError(f"{setting} needs {module}: {install}")
  # fsspec would keep listings, and miss what TensorStore and other processes write.
  for name in {"gs": ("gs", "gcs")}.get(scheme, (scheme,)):
    fsspec.config.conf.setdefault(name, {})["use_listings_cache"] = False


def _installed(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # a parent package is missing
    return False


def is_local(place: Location) -> bool:
  """Returns whether a location is on a disk of this machine, as far as its path tells."""
  return "://" not in str(place)


def make_folder(folder: Location, knob: str) -> None:
  """Makes a folder and proves that files can be written there.

  Args:
    folder: the folder, local or of an object store.
    knob: the name of the setting that holds it, for messages.

  Raises:
    ValueError: no file can be written there.
  """
  if not is_local(folder):
    _try_writing(folder, knob)
    return
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    raise ValueError(
      f"cannot write to {folder} ({error.strerror or error}); set {knob} to a folder that can be "
      "written"
    ) from None


def _try_writing(folder: Location, knob: str) -> None:
  probe = folder / f".probe-{uuid.uuid4().hex}"
  try:
    probe.write_text("")
    probe.unlink()
  except Exception as error:  # the library of the store may raise anything
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(
      f"cannot write to {folder} ({reason}); check that the bucket exists and that this machine's "
      f"account may create and delete objects there, or set another {knob}"
    ) from None


def write_text(place: Location, text: str) -> None:
  """Writes a file, which appears as a whole or not at all, and makes its folder where missing."""
  if not is_local(place):
    system, name = fsspec.core.url_to_fs(str(place))
    system.pipe_file(name, text.encode())  # one request; `open` makes two
    return
  place.parent.mkdir(parents=True, exist_ok=True)
  partial = place.with_name(f".{place.name}.partial")
  partial.write_text(text, encoding="utf-8")
  os.replace(partial, place)


def append_text(place: Location, text: str) -> None:
  """Adds to the end of a small file, which it makes where missing; an object is written anew."""
  if is_local(place):
    with place.open("a", encoding="utf-8") as file:
      file.write(text)
  else:
    write_text(place, (place.read_text() if place.exists() else "") + text)


def version(place: Location) -> str | None:
  """Returns the version of an object, another one after each write; None if there is no object."""
  system, name = fsspec.core.url_to_fs(str(place))
  try:
    found = system.info(name)
  except FileNotFoundError:
    return None
  return version_of(found)


def size_and_digest(place: Location) -> tuple[int, str]:
  """Returns the number of bytes of an object, and the checksum that gs:// keeps of it.

  Raises:
    FileNotFoundError: there is no such object.
  """
  system, name = fsspec.core.url_to_fs(str(place))
  found = system.info(name)
  return found["size"], f"crc32c {found['crc32c']}"


def version_of(info: Mapping[str, Any]) -> str:
  """Returns the version of an object, as `version` does, from what fsspec tells about it."""
  known = (info.get(key) for key in ("generation", "ETag", "etag", "mtime", "last_modified"))
  return str(next((value for value in known if value), None))


@contextlib.contextmanager
def written_locally(folder: Location) -> Iterator[pathlib.Path]:
  """Gives a local folder to code that cannot write elsewhere; its files are moved to `folder`."""
  if is_local(folder):
    yield folder
    return
  with tempfile.TemporaryDirectory() as name:
    yield pathlib.Path(name)
    upload(pathlib.Path(name), folder)


def upload(source: pathlib.Path, target: Location) -> None:
  """Copies the files of a local folder, and of the folders in it, into another folder."""
  system, name = fsspec.core.url_to_fs(str(target))
  files = sorted(path for path in source.rglob("*") if path.is_file())
  names = [f"{name}/{path.relative_to(source).as_posix()}" for path in files]
  system.put([str(path) for path in files], names)
