"""A GGUF file, as the folder of Hugging Face that it was made of."""

import dataclasses
import functools
import pathlib
from typing import Any

from resjax.base import extras
from resjax.data.gguf import header, settings, tokenizer
from resjax.data.gguf.header import GgufTensor


@dataclasses.dataclass(frozen=True, eq=False)
class GgufFile:
  """The contents of a GGUF file but for its tensors, which are read one at a time.

  Attributes:
    place: the file.
    metadata: its metadata by name.
    tensors: its tensors by the names that they have there.
  """

  place: pathlib.Path
  metadata: dict[str, Any]
  tensors: dict[str, GgufTensor]

  @classmethod
  def open(cls, place: pathlib.Path) -> "GgufFile":
    """Returns the contents of a file, which are read once while the file stays as it is.

    Raises:
      ValueError: it is none that can be read, see `header.read`; or the package gguf is missing.
    """
    try:
      import gguf  # noqa: F401
    except ModuleNotFoundError:
      raise ValueError(extras.missing(f"reading {place}", "gguf")) from None
    state = place.stat()
    return _read(place, (state.st_ino, state.st_mtime_ns, state.st_size))

  @property
  def architecture(self) -> str:
    """The architecture, by the name that GGUF has for it."""
    return self.metadata["general.architecture"]

  @functools.cached_property
  def settings(self) -> dict[str, Any]:
    """What config.json would say; ValueError where `settings.read` raises it."""
    return settings.read(self.place, self.metadata, self.tensors)

  @functools.cached_property
  def files(self) -> dict[str, str]:
    """The files of the tokenizer by name; ValueError where `tokenizer.files` raises it."""
    return tokenizer.files(self.place, self.metadata)


@functools.lru_cache(maxsize=2)  # the vocabulary of a file is tens of megabytes
def _read(place: pathlib.Path, _: tuple[int, ...]) -> GgufFile:
  return GgufFile(place, *header.read(place))
