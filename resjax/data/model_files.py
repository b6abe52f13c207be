"""The files of a pretrained model, wherever it is: a folder, a GGUF file, or a name on the hub."""

import abc
import json
import os
import pathlib
from typing import TypeVar

from resjax.base import locations, typed_json
from resjax.data import hub
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
    if self.place.is_dir():
      return said
    why = f"; the folder {self.place.parent} is, so that the hub is not asked"
    local = HubName.of(str(self.place)) and self.place.parent.is_dir()
    return f"{said}: it is not here{why if local else ''}; {_ALLOWED}"


class OfGguf(ModelFiles):
  """A GGUF file, whose metadata stand for config.json and the files of a tokenizer."""

  def __init__(self, place: pathlib.Path):
    super().__init__(place, place.stem)
    self.content = GgufFile.open(place)

  def text(self, name: str) -> str | None:
    """Returns the text that a file of a folder would have; None if the metadata have none."""
    if name == CONFIG:
      return json.dumps(self.content.settings)
    return self.content.files.get(name) if name in TOKENIZER else None

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
      OWNER/NAME[@REVISION] of a model on the hub, with :FILE.gguf for a GGUF file there. A
      `pathlib.Path` is never on the hub, nor what would lie in a folder OWNER that is here.

  Raises:
    ValueError: it is none of them, or cannot be fetched.
  """
  if isinstance(named, ModelFiles):
    return named
  place, name = pathlib.Path(named), title(named)
  if remote := _remote(named):
    place = hub.fetch(remote, CONFIG, (GENERATION, *TOKENIZER))
  return OfGguf(place) if place.is_file() else Folder(place, name)


def is_one(named: str | os.PathLike) -> bool:
  """Returns whether a path is that of a pretrained model, or may be its name on the hub."""
  place = pathlib.Path(named)
  if place.is_dir():
    return (place / CONFIG).is_file() or any(place.glob(f"*{_GGUF}"))
  return place.is_file() or _remote(named) is not None


def _remote(named: str | os.PathLike) -> HubName | None:
  """Returns the model on the hub that a text names; None: it names what is, or would be, here.

  A mistyped path, such as that of a run in runs, asks no server.
  """
  remote = HubName.of(named) if isinstance(named, str) else None
  if remote is None or pathlib.Path(named).exists():
    return None
  return None if pathlib.Path(remote.repo).parent.is_dir() else remote


def title(named: str | os.PathLike) -> str:
  """Returns the name of a pretrained model without its place: NAME of runs/NAME or OWNER/NAME."""
  remote = _remote(named)
  found = pathlib.Path(remote.file or remote.repo if remote else named).absolute().name
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
