"""A text file that grows line by line, on a disk or in an object store."""

import os
import time
from collections.abc import Callable, Iterable

from resjax.base import locations
from resjax.base.locations import Location

_SHARE = 0.01  # the share of the time that writing between two calls of `flush` may take
_LEAST = 10.0  # seconds between two such writes, at least


class LocalLines:
  """A file on a disk, to which each line is written as soon as it is added.

  Args:
    path: the path of the file.
    kept: the first lines; whatever else the file held is dropped.

  Raises:
    OSError: the file cannot be written; the methods raise it, too.
  """

  def __init__(self, path: Location, kept: Iterable[str]):
    # At any time either the old file or the new one exists.
    self._path, temporary = path, path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # a killed process left it, or somebody a link
    with locations.writing(path), temporary.open("x", encoding="utf-8") as file:  # "x": no link
      file.writelines(line + "\n" for line in kept)
      file.flush()
      os.fsync(file.fileno())
    temporary.replace(path)
    self._file = path.open("a", encoding="utf-8")

  def add(self, line: str) -> None:
    """Appends a line."""
    with locations.writing(self._path):
      self._file.write(line + "\n")
      self._file.flush()

  def flush(self) -> None:
    """Does nothing, because all lines are in the file."""

  def close(self) -> None:
    """Closes the file."""
    with locations.writing(self._path):
      self._file.close()


class RemoteLines:
  """An object of lines, which is written as a whole.

  It is written when `flush` is called, and in between as often as takes at most 1 % of the time.

  Args:
    path: the path of the object.
    kept: the first lines; whatever else the object held is dropped.
    clock: returns seconds; for tests.
  """

  def __init__(
    self, path: Location, kept: Iterable[str], *, clock: Callable[[], float] = time.monotonic
  ):
    self._path, self._clock = path, clock
    self._lines = [line + "\n" for line in kept]
    self._version = locations.version(path)
    self._pending = True
    self.flush()

  def add(self, line: str) -> None:
    """Adds a line.

    Raises:
      ValueError: another process writes the same object.
    """
    self._lines.append(line + "\n")
    self._pending = True
    if self._clock() >= self._next:
      self.flush()

  def flush(self) -> None:
    """Writes all lines, if there are new ones.

    Raises:
      ValueError: another process writes the same object.
    """
    if not self._pending:
      return
    began = self._clock()
    if locations.version(self._path) != self._version:
      self._pending = False
      raise ValueError(
        f"another process writes {self._path} since it was last written here, so that run goes on "
        "there; if both were started on purpose, give this one another config.workdir"
      )
    locations.write_text(self._path, "".join(self._lines))
    self._version, self._pending = locations.version(self._path), False
    ended = self._clock()
    self._next = ended + max((ended - began) / _SHARE, _LEAST)

  def close(self) -> None:
    """Writes all lines, if there are new ones."""
    self.flush()


def opened(path: Location, kept: Iterable[str]) -> LocalLines | RemoteLines:
  """Returns the file of a path, with no other lines than those that are kept."""
  return (LocalLines if locations.is_local(path) else RemoteLines)(path, kept)
