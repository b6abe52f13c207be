"""Where checkpoints can be, and the paths of them that Orbax gets."""

import os
from pathlib import Path

from etils import epath

from resjax.base import LiteralPath, LocalPath, ranges


def absolute(folder: epath.PathLike) -> LiteralPath:
  """Returns an absolute path, as Orbax needs it; that of an object store is one already.

  Raises:
    ValueError: TensorStore, which reads and writes the arrays, has no name for the folder.
  """
  text = os.fspath(folder)
  if "://" in text:
    return LiteralPath(text)
  path = os.path.abspath(text)
  if ".." in Path(text).parts:  # TensorStore leaves out a link before it, where it leads elsewhere
    path = os.path.realpath(text)
  if "\\" in path or not ranges.is_utf8(path):
    raise ValueError(
      f"checkpoints cannot be kept in {path!r}: a path without backslashes, in UTF-8, is allowed; "
      "choose another config.workdir"
    )
  return LocalPath(path)
