"""Paths for libraries of Google's, which name the same files as for the operating system."""

import glob
import os
import stat
from collections.abc import Iterator
from typing import Self

from etils.epath.gpath import PosixGPath
from etils.epath.stat_utils import StatResult


class LiteralPath(PosixGPath):
  """A path of etils whose own characters stand for themselves in patterns.

  Orbax finds the parts that processes wrote by a pattern below their folder. A plain path of etils
  would take `[b]` in the name of a folder for part of that pattern and find nothing, and Orbax
  would finish a checkpoint that nobody can read.
  """

  def glob(self, pattern: str) -> Iterator[Self]:
    """Yields what is below this folder and matches a pattern without `**`."""
    for name in self._backend.glob(self._PATH.join(glob.escape(self._path_str), pattern)):
      yield self._new(name)


class LocalPath(LiteralPath):
  """A path of etils on a disk of this machine.

  A plain one would look up the name of the owner of a file, whom /etc/passwd need not know where a
  disk comes from another machine, and would take /gs/NAME for gs://NAME.
  """

  @property
  def _uri_scheme(self) -> None:
    return None

  def stat(self) -> StatResult:
    """Returns kind, size, time and mode of a file; the owner is left out."""
    found = os.stat(self)
    return StatResult(
      is_directory=stat.S_ISDIR(found.st_mode),
      length=found.st_size,
      mtime=int(found.st_mtime),
      owner=None,
      group=None,
      mode=found.st_mode,
    )
