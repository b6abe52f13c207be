"""A GGUF file, as the folder of Hugging Face that it was made of."""

import dataclasses
import pathlib
from typing import Any

from resjax.base import extras
from resjax.data.gguf import header, settings, tokenizer
from resjax.data.gguf.header import GgufTensor


@dataclasses.dataclass(frozen=True)
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
    """Returns the contents of a file.

    Raises:
      ValueError: it is none that can be read, see `header.read`; or the package gguf is missing.
    """
    try:
      import gguf  # noqa: F401
    except ModuleNotFoundError:
      raise ValueError(extras.missing(f"reading {place}", "gguf")) from None
    found = header.read(place)
    return cls(place, found.metadata, found.tensors)

  @property
  def architecture(self) -> str:
    """The architecture, by the name that GGUF has for it."""
    return self.metadata["general.architecture"]

  def settings(self) -> dict[str, Any]:
    """Returns what config.json would say, see `settings.read`."""
    return settings.read(self.place, self.metadata, self.tensors)

  def files(self) -> dict[str, str]:
    """Returns the tokenizer's files and config.json by name, see `tokenizer.files`."""
    return tokenizer.files(self.place, self.metadata)
