"""Models on the hub of Hugging Face, fetched into the cache of huggingface_hub.

Its settings hold: HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN, and HF_HUB_OFFLINE, with which no
server is asked.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Collection, Iterable
from types import ModuleType
from typing import TypeVar

from resjax.base import extras, redaction, typed_json

_PART = r"[A-Za-z0-9_][\w.-]*"
_NAME = re.compile(
  rf"(?P<repo>{_PART}/{_PART})(@(?P<revision>[^\s@:]+))?(:(?P<file>[^\s:]+\.gguf))?", re.ASCII
)
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Shards:
  """The content of the index, which names the file of each tensor."""

  weight_map: dict[str, str]


@dataclasses.dataclass(frozen=True)
class HubName:
  """A model on the hub.

  Attributes:
    repo: OWNER/NAME.
    revision: a branch, a tag or a commit; None: the main branch.
    file: a GGUF file in it; None: the folder of safetensors.
  """

  repo: str
  revision: str | None = None
  file: str | None = None

  @classmethod
  def of(cls, text: str) -> "HubName | None":
    """Returns the model that OWNER/NAME[@REVISION][:FILE.gguf] names; None: a text is no name."""
    found = _NAME.fullmatch(text)
    return cls(**found.groupdict()) if found else None

  def __str__(self) -> str:
    revision = f"@{self.revision}" if self.revision else ""
    return f"{self.repo}{revision}{f':{self.file}' if self.file else ''}"


@functools.cache  # so that one process reads one revision
def fetch(name: HubName, needed: str, wanted: tuple[str, ...]) -> pathlib.Path:
  """Returns the local folder of the model, or its GGUF file; only what is missing is fetched.

  Args:
    name: its name.
    needed: the name of the file that a folder has beside its safetensors.
    wanted: the names of those that it may have.

  Raises:
    ValueError: there is no such model, revision or file, it may not be read, or the hub cannot be
      reached and the cache has not all of it; or huggingface_hub is not installed.
  """
  files: tuple[str, ...] = (name.file,) if name.file else (needed, *wanted, INDEX)
  folder = _snapshot(name, name.revision, files)
  if not name.file:
    files = needed, *_weights(folder)
    if _absent(folder, files):
      _snapshot(name, folder.name, files)
  if absent := _absent(folder, files):
    raise ValueError(_without(name, folder.name, absent[0]))
  return folder / name.file if name.file else folder


def _weights(folder: pathlib.Path) -> tuple[str, ...]:
  """Returns the files that the index of a snapshot names; without one, the only file."""
  try:
    return tuple(sorted({*typed_json.read(folder / INDEX, Shards).weight_map.values()}))
  except FileNotFoundError:
    return (SINGLE,)
  except ValueError:
    return (INDEX,)  # whoever reads the folder says what is wrong with it


def _absent(folder: pathlib.Path, files: Iterable[str]) -> list[str]:
  return [file for file in files if not (folder / file).is_file()]


def _snapshot(name: HubName, revision: str | None, files: Collection[str]) -> pathlib.Path:
  options = {"revision": revision, "allow_patterns": list(files)}
  return pathlib.Path(_ask(name, lambda hub: hub.snapshot_download(name.repo, **options)))


def _without(name: HubName, revision: str, absent: str) -> str:
  """Returns why a file is not in the cache, with the GGUF files that there are in its place."""
  about = _ask(name, lambda hub: hub.model_info(name.repo, revision=revision), absent)
  files = [one.rfilename for one in about.siblings or ()]
  said = f"{name} is not there: {name.repo} has no file {absent} on the hub"
  others = [str(dataclasses.replace(name, file=file)) for file in files if file.endswith(".gguf")]
  more = f" (or one of {len(others) - 1} more)" if len(others) > 1 else ""
  return f"{said}; give {others[0]}{more}" if others else said


def _ask(name: HubName, question: Callable[[ModuleType], T], absent: str = "") -> T:
  """Returns what the library answers; `absent` is a file that the cache is known not to have."""
  try:
    import huggingface_hub as library
    from huggingface_hub import errors
  except ModuleNotFoundError:
    needs = extras.missing(f"fetching {name} from the hub", "huggingface_hub")
    raise ValueError(f"there is no file or folder {str(name)!r} here; {needs}") from None
  try:
    return question(library)
  except errors.GatedRepoError:
    reason = "it is gated: accept its terms on its page, and set HF_TOKEN to a token of yours"
  except errors.RepositoryNotFoundError:
    reason = "the hub has no such model, or it is private: set HF_TOKEN to a token that may read it"
  except errors.RevisionNotFoundError:
    reason = f"it has no revision {name.revision!r}: give a branch, a tag or a commit"
  except errors.LocalEntryNotFoundError as error:
    reason = _unreached("not all of its files", error.__cause__ or error)
  except Exception as error:  # whatever the library's own libraries raise
    reason = _unreached(f"no {absent}", error) if absent else _line(error)
  raise ValueError(
    f"{str(name)!r} is neither a file or folder here nor a model that "
    f"{redaction.text(library.constants.ENDPOINT)} gives: {redaction.text(reason)}"
  )


def _unreached(has: str, error: BaseException) -> str:
  return (
    f"the hub was not reached, and the cache has {has}: go online, unset HF_HUB_OFFLINE, or set "
    f"HF_HOME to a cache that has them ({_line(error)})"
  )


def _line(error: BaseException) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[0]
