"""Models on the hub of Hugging Face, fetched into the cache of huggingface_hub.

Its settings hold: HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN, and HF_HUB_OFFLINE, with which no
server is asked.
"""

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Collection

from resjax.base import extras

_PART = r"[A-Za-z0-9_][\w.-]*"
_NAME = re.compile(
  rf"(?P<repo>{_PART}/{_PART})(@(?P<revision>[^\s@:]+))?(:(?P<file>[^\s:]+\.gguf))?", re.ASCII
)
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


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

  def fetch(self, small: Collection[str]) -> pathlib.Path:
    """Returns the local folder of the model, or its GGUF file; only what is missing is fetched.

    Args:
      small: the names of the files beside the safetensors that are wanted where they exist.

    Raises:
      ValueError: there is no such model, revision or file, it may not be read, or the hub cannot be
        reached and the cache has not all of it; or huggingface_hub is not installed.
    """
    return _fetched(self, tuple(small))

  def __str__(self) -> str:
    revision = f"@{self.revision}" if self.revision else ""
    return f"{self.repo}{revision}{f':{self.file}' if self.file else ''}"


@functools.cache  # so that one process reads one revision
def _fetched(name: HubName, small: tuple[str, ...]) -> pathlib.Path:
  if name.file:
    place = _snapshot(name, name.revision, (name.file,)) / name.file
    if not place.is_file():
      raise ValueError(f"{name} is not there: {name.repo} has no file {name.file} on the hub")
    return place
  folder = _snapshot(name, name.revision, (*small, INDEX))
  _snapshot(name, folder.name, _weights(folder))
  return folder


def _weights(folder: pathlib.Path) -> tuple[str, ...]:
  """Returns the files that the index of a snapshot names; without one, the only file."""
  try:
    named = json.loads((folder / INDEX).read_text())["weight_map"].values()
    return tuple(sorted(set(named)))
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    return (SINGLE,)  # whoever reads the folder says what is wrong with an index


def _snapshot(name: HubName, revision: str | None, files: Collection[str]) -> pathlib.Path:
  try:
    import huggingface_hub as library
    from huggingface_hub import errors
  except ModuleNotFoundError:
    needs = extras.missing(f"fetching {name} from the hub", "huggingface_hub")
    raise ValueError(f"there is no file or folder {str(name)!r} here; {needs}") from None
  try:
    return pathlib.Path(
      library.snapshot_download(name.repo, revision=revision, allow_patterns=list(files))
    )
  except errors.GatedRepoError:
    reason = "it is gated: accept its terms on its page, and set HF_TOKEN to a token of yours"
  except errors.RepositoryNotFoundError:
    reason = "the hub has no such model, or it is private: set HF_TOKEN to a token that may read it"
  except errors.RevisionNotFoundError:
    reason = f"it has no revision {name.revision!r}: give a branch, a tag or a commit"
  except errors.LocalEntryNotFoundError as error:
    reason = (
      "the hub was not reached, and the cache has not all of its files: go online, unset "
      f"HF_HUB_OFFLINE, or set HF_HOME to a cache that has them ({_line(error.__cause__ or error)})"
    )
  except Exception as error:  # whatever the library's own libraries raise
    reason = _line(error)
  raise ValueError(
    f"{str(name)!r} is neither a file or folder here nor a model that {library.constants.ENDPOINT} "
    f"gives: {reason}"
  )


def _line(error: BaseException) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[0]
