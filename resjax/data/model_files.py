"""The files of a pretrained model, wherever it is: a folder, a GGUF file, or a name on the hub."""

import abc
import json
import os
import pathlib
from typing import TypeVar

from resjax.base import locations, typed_json
from resjax.data.gguf import GgufFile
from resjax.data.hub import HubName
from resjax.data.model_ids import GENERATION

CONFIG = "config.json"
MAIN = "tokenizer.json"
TOKENIZER = (
  MAIN,
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "chat_template.jinja",
)
_GGUF = ".gguf"
_ALLOWED = "give a folder with config.json, a GGUF file, or OWNER/NAME[@REVISION] of the hub"

T = TypeVar("T")


class ModelFiles(abc.ABC):
  """The files of a pretrained model by the names that they have in a Hugging Face folder.

  Attributes:
    place: the folder, or the file that stands for one.
    name: the name of the model, for titles.
  """

  def __init__(self, place: pathlib.Path, name: str):
    self.place, self.name = place, name

  @abc.abstractmethod
  def text(self, name: str) -> str | None:
    """Returns a file of text; None: there is none of this name.

    Raises:
      ValueError: it is no regular file, too large, or not UTF-8.
    """

  def where(self, name: str) -> str:
    """Returns what a file of text is called in messages."""
    return str(self.place / name)

  def json(self, name: str, kind: type[T]) -> T:
    """Returns the typed content of a JSON file.

    Raises:
      ValueError: the file is missing, or holds something else.
    """
    text = self.text(name)
    if text is None:
      raise ValueError(self._without(name))
    return typed_json.parse(text, kind, self.where(name))

  @abc.abstractmethod
  def paths(self) -> list[pathlib.Path]:
    """Returns the files on the disk that make the model."""

  def _without(self, name: str) -> str:
    return f"{self.place} has no {name}"

  def __fspath__(self) -> str:
    return str(self.place)

  def __str__(self) -> str:
    return str(self.place)


class Folder(ModelFiles):
  """A folder with config.json, safetensors and tokenizer.json."""

  def text(self, name: str) -> str | None:
    """Returns the text of a file in the folder; None if there is no such file."""
    try:
      return read_text(self.place / name)
    except (FileNotFoundError, NotADirectoryError):
      return None

  def paths(self) -> list[pathlib.Path]:
    """Returns all files of the folder."""
    return [path for path in sorted(self.place.iterdir()) if path.is_file()]

  def _without(self, name: str) -> str:
    said = super()._without(name)
    inside = sorted(self.place.glob(f"*{_GGUF}")) if name == CONFIG else []
    if inside:
      return f"{said}; give a GGUF file itself, such as {inside[0]}"
    return said if self.place.is_dir() else f"{said}: it is not here; {_ALLOWED}"


class OfGguf(ModelFiles):
  """A GGUF file, whose metadata stand for config.json and the files of a tokenizer."""

  def __init__(self, place: pathlib.Path):
    super().__init__(place, place.stem)
    self.content = GgufFile.open(place)
    self._tokenizer: dict[str, str] = {}

  def text(self, name: str) -> str | None:
    """Returns the text that a file of a folder would have; None if the metadata have none."""
    if name == CONFIG:
      return json.dumps(self.content.settings())
    if name not in TOKENIZER:
      return None
    if not self._tokenizer:
      self._tokenizer = self.content.files()
    return self._tokenizer.get(name)

  def where(self, name: str) -> str:
    """Returns the place of the GGUF file, whatever part of it is meant."""
    return str(self.place)

  def paths(self) -> list[pathlib.Path]:
    """Returns the GGUF file alone."""
    return [self.place]


Named = str | os.PathLike | ModelFiles  # what names a pretrained model


def find(named: Named) -> ModelFiles:
  """Returns the files of a pretrained model.

  Args:
    named: a folder with config.json, safetensors and tokenizer.json; a GGUF file; or
      OWNER/NAME[@REVISION] of a model on the hub, with :FILE.gguf for a GGUF file there. What is on
      the disk goes before what is on the hub.

  Raises:
    ValueError: it is none of them, or cannot be fetched.
  """
  if isinstance(named, ModelFiles):
    return named
  text = os.fspath(named)
  place, name = pathlib.Path(text), title(text)
  if not place.exists() and (remote := HubName.of(text)):
    place = remote.fetch((CONFIG, GENERATION, *TOKENIZER))
  return OfGguf(place) if place.is_file() else Folder(place, name)


def is_one(text: str) -> bool:
  """Returns whether a path is that of a pretrained model, or may be its name on the hub."""
  place = pathlib.Path(text)
  if place.is_dir():
    return (place / CONFIG).is_file() or any(place.glob(f"*{_GGUF}"))
  return place.is_file() or (not place.exists() and HubName.of(text) is not None)


def title(text: str) -> str:
  """Returns the name of a pretrained model without its place: NAME of runs/NAME or OWNER/NAME."""
  remote = None if pathlib.Path(text).exists() else HubName.of(text)
  found = pathlib.Path(remote.file or remote.repo if remote else text).absolute().name
  return found.removesuffix(_GGUF)


def read_text(path: locations.Location) -> str:
  """Returns a text file of bounded size.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no regular file, too large, or not UTF-8.
  """
  try:
    return locations.read_bytes(path, typed_json.MOST_BYTES).decode()
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is not UTF-8: {error}") from None
