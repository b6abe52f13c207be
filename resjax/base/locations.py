"""Files on the local disk or in an object store such as gs://, by the path that a setting gives.

An object store has no folders, no locks, and no way to append to an object; a rename there copies.
An object that is written appears as a whole or not at all.
"""

import contextlib
import errno
import functools
import importlib.util
import io
import os
import pathlib
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from typing import IO, Any, TypeAlias, cast

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
# What to do about a condition outside of the program, by the number of the system's error.
_WAYS_OUT = {
  errno.ENOSPC: "make room there",
  errno.EFBIG: "make room there, or raise the limit of file sizes (ulimit -f)",
  errno.EDQUOT: "make room there, or ask for a larger quota",
  errno.EROFS: "mount it for writing, or choose a folder that can be written",
  errno.EACCES: "let this user read and write there",
  errno.EPERM: "let this user read and write there",
  errno.EMFILE: "allow more open files (ulimit -n)",
  errno.ENFILE: "let other programs close files",
  errno.EIO: "its disk or server fails; the log of the system says more",
  errno.ESTALE: "its server has replaced it; mount it again",
  errno.ENOTCONN: "its server is gone; mount it again",
  errno.ENAMETOOLONG: "choose a shorter path",
  errno.ELOOP: "remove the link that leads in a circle",
  errno.ENOENT: "bring back what was moved or deleted",
  errno.ENOTDIR: "move the file away that has the name of a folder",
  errno.EEXIST: "move away what has its name, such as a link that leads nowhere",
}
_WRITABLE = ("gs",)  # the schemes of stores where Orbax writes checkpoints


def path(text: str | os.PathLike, setting: str = "path", *, writable: bool = False) -> Location:
  """Returns the location that a setting names.

  Args:
    text: a local path, or that of an object: gs://BUCKET/NAME.
    setting: the name of the setting, for messages.
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
      f"{setting}={str(text)!r} is neither local nor {' or '.join(known)}BUCKET/NAME; mount it "
      "(for instance with gcsfuse) and give the local folder"
    )
  _prepare(scheme, f"{setting}={str(text)!r}")
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


def inside(root: Location, name: object, where: str, *, links: Location | None = None) -> Location:
  """Returns the path of a name that a file of a stranger may hold, which must stay below a folder.

  Args:
    root: the folder that the name is relative to.
    name: the name, with slashes between folders.
    where: the file and key that hold the name, for messages.
    links: the folder that no link on the way may leave; default: `root`.

  Raises:
    ValueError: the name is empty or absolute, has `..`, or a link on its way leads out.
  """
  parts = pathlib.PurePosixPath(name).parts if isinstance(name, str) else ()
  plain = bool(parts) and "\0" not in str(name) and "\\" not in str(name)
  if not plain or parts[0] == "/" or ".." in parts or ":" in parts[0]:
    raise ValueError(f"{where} is {name!r}: a name below {root}, without .., is allowed")
  found = root.joinpath(*parts)
  # Unlike Path.resolve, this leaves it to whoever opens the file to refuse a circle of links.
  real = pathlib.Path(os.path.realpath(found)) if is_local(root) else None
  bound = links or root
  if real and not real.is_relative_to(os.path.realpath(bound)):
    raise ValueError(f"{where} is {name!r}, which a link leads out of {bound}")
  return found


def open_regular(place: Location) -> io.BufferedIOBase:
  """Opens a file to read bytes, unless it is a pipe, a socket, a device or a folder.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no regular file.
  """
  if not is_local(place):
    return cast(io.BufferedIOBase, place.open("rb"))
  # Without O_NONBLOCK, a pipe that nobody writes to would block here.
  number = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  if not stat.S_ISREG(os.fstat(number).st_mode):
    os.close(number)
    raise ValueError(f"{place} is no regular file; give a file or a copy of it")
  return open(number, "rb")


def read_bytes(place: Location, most_bytes: int) -> bytes:
  """Returns the content of a file of bounded size.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no regular file, or larger than `most_bytes`.
  """
  with open_regular(place) as file:
    content = file.read(most_bytes + 1)
  if len(content) > most_bytes:
    raise ValueError(f"{place} is larger than {most_bytes:,} bytes, the most that is read")
  return content


def open_lock(path: pathlib.Path) -> IO[bytes]:
  """Opens a file that processes lock, made where missing; a link is refused and nothing is cut.

  Raises:
    OSError: the file cannot be opened, or is a link.
  """
  flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
  return open(os.open(path, flags, 0o666), "rb+", buffering=0)


def make_folder(folder: Location, setting: str) -> None:
  """Makes a folder and proves that files can be written there.

  Args:
    folder: the folder, local or of an object store.
    setting: the name of the setting that holds it, for messages.

  Raises:
    ValueError: no file can be written there.
  """
  if not is_local(folder):
    _try_writing(folder, setting)
    return
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    way = way_out(error)
    raise ValueError(
      f"cannot write to {folder} ({error.strerror or error}); {f'{way}, or ' if way else ''}set "
      f"{setting} to a folder that can be written"
    ) from None


def _try_writing(folder: Location, setting: str) -> None:
  probe = folder / f".probe-{uuid.uuid4().hex}"
  try:
    probe.write_text("")
    probe.unlink()
  except Exception as error:  # the library of the store may raise anything
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(
      f"cannot write to {folder} ({reason}); check that the bucket exists and that this machine's "
      f"account may create and delete objects there, or set another {setting}"
    ) from None


def way_out(error: BaseException) -> str | None:
  """Returns what to do about a condition outside of the program; None where nothing is known.

  Args:
    error: an error of the system, or one that was raised for it or quotes it, as TensorStore's do.
  """
  cause: BaseException | None = error
  while cause is not None:
    if isinstance(cause, OSError) and cause.errno in _WAYS_OUT:
      return _WAYS_OUT[cause.errno]
    if quoted := re.search(r"\b[Oo][Ss] error (\d+)", str(cause)):
      return _WAYS_OUT.get(int(quoted[1]))
    cause = cause.__cause__ or cause.__context__
  return None


@contextlib.contextmanager
def writing(place: Location) -> Iterator[None]:
  """Names a file in the error of writing it, which alone would not say where room is missing.

  Raises:
    OSError: the file could not be written.
  """
  try:
    yield
  except OSError as error:
    way = way_out(error) or "see that it can be written"
    raise OSError(
      f"cannot write {place} ({error.strerror or error}); {way}, and the same command goes on"
    ) from error


def write_text(place: Location, text: str) -> None:
  """Writes a file of text, see `write_bytes`."""
  write_bytes(place, text.encode())


def write_bytes(place: Location, content: bytes) -> None:
  """Writes a file, which appears as a whole or not at all, and makes its folder where missing.

  Raises:
    OSError: the file could not be written.
  """
  if not is_local(place):
    system, name = fsspec.core.url_to_fs(str(place))
    system.pipe_file(name, content)  # one request; `open` makes two
    return
  partial = place.with_name(f".{place.name}.partial")
  with writing(place):
    place.parent.mkdir(parents=True, exist_ok=True)
    partial.unlink(missing_ok=True)  # a killed process left it, or somebody a link
    try:
      with open(partial, "xb") as file:  # "x" follows no link
        file.write(content)
      os.replace(partial, place)
    except BaseException:
      partial.unlink(missing_ok=True)
      raise


def remove(place: pathlib.Path) -> None:
  """Removes a local folder, or the link or file in its place, if there is one."""
  if place.is_symlink() or place.is_file():
    place.unlink()
  elif place.exists():
    shutil.rmtree(place)


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


def upload(source: pathlib.Path, target: Location, last: str = "") -> None:
  """Copies the files of a local folder, and of the folders in it, into another folder.

  Args:
    source: the local folder.
    target: the other folder.
    last: the name of a file that is copied after all others; empty: none.
  """
  system, name = fsspec.core.url_to_fs(str(target))
  files = sorted(path for path in source.rglob("*") if path.is_file())
  for late in (False, True):
    now = [path for path in files if (path == source / last) == late]
    names = [f"{name}/{path.relative_to(source).as_posix()}" for path in now]
    if now:
      system.put([str(path) for path in now], names)
