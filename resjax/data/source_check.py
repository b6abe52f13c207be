"""What can be said of the sources of a data set before anything of it is read or built."""

import os
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import fsspec

from resjax.base import locations
from resjax.data import sources
from resjax.data.config import CorpusConfig, DataConfig, SettingNames
from resjax.data.synthetic import tasks

_SECONDS = 20.0  # an object store may try to answer for minutes
_T = TypeVar("_T")


class Finding(NamedTuple):
  """The result of checking one thing that a run needs.

  Attributes:
    what: the thing, such as the name of a setting.
    ok: whether it exists; None: this machine cannot find out.
    text: what was found; or what is wrong and what to do; or why nothing is known.
  """

  what: str
  ok: bool | None
  text: str


def check(config: DataConfig) -> list[Finding]:
  """Returns a finding for each corpus; local files are looked at, nothing is downloaded."""
  if config.built:
    text = f"the data built before are taken from config.data.root={config.root}"
    return [Finding("config.data.built", None, f"{text}, whose files are compared at the start")]
  return [_check(name, corpus) for name, corpus in config.corpora]


def reachable(path: str) -> Finding:
  """Returns whether a bucket or a folder in it can be listed with the credentials of this machine.

  Args:
    path: the path of an object store, such as gs://BUCKET/FOLDER; behind a wildcard it is cut.
  """
  place = path.split("*", 1)[0].split("?", 1)[0].split("[", 1)[0]
  folder = place if place == path else place.rpartition("/")[0]
  try:
    locations.path(folder)
    if folder.startswith("gs://"):
      _require_login()
    _in_time(lambda: _info(folder))
  except FileNotFoundError:
    return Finding(path, False, "there is no such bucket, file or folder")
  except Exception as error:  # the libraries of object stores raise anything
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Finding(path, None, f"it cannot be read from here ({reason})")
  return Finding(path, True, "it can be read from here")


def _check(name: str, corpus: CorpusConfig) -> Finding:
  settings = SettingNames.of_corpus(name)
  what = f"{settings.source}={corpus.source}"
  if corpus.source == sources.STDLIB:
    return Finding(what, True, "the .py files of the Python that builds the data")
  if corpus.source.startswith(tasks.PREFIX):
    return Finding(what, True, "it is made, and needs no files")
  if corpus.source.startswith(sources.TFDS):
    return Finding(what, None, "TFDS downloads and prepares it where the data are built")
  if "://" in corpus.source and (found := reachable(corpus.source)).ok is not True:
    return found._replace(what=what)
  try:
    source = _in_time(lambda: sources.open_source(settings, corpus))
    if source.is_local:
      _in_time(source.look)
  except ValueError as error:
    return Finding(what, False, str(error).removeprefix(f"{settings.source}: "))
  size = sum(size for _, size, _ in source.stamps)
  return Finding(what, True, f"{len(source.stamps):,} files, {size / 1e9:,.3f} GB")


def _require_login() -> None:
  """Raises PermissionError without credentials, with which gcsfs would ask again for minutes."""
  import google.auth
  from google.auth.exceptions import DefaultCredentialsError

  if "STORAGE_EMULATOR_HOST" in os.environ:
    return
  try:
    google.auth.default()
  except DefaultCredentialsError:
    login = "gcloud auth application-default login"
    raise PermissionError(f"no credentials here; `{login}` gives them") from None


def _info(folder: str) -> None:
  system, name = fsspec.core.url_to_fs(folder)
  system.info(name)


def _in_time(look: Callable[[], _T]) -> _T:
  """Returns the result of a function, and gives up on it after `_SECONDS`."""
  found: list[_T | BaseException] = []

  def work() -> None:
    try:
      found.append(look())
    except BaseException as error:
      found.append(error)

  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  thread.join(_SECONDS)
  if not found:
    raise TimeoutError(f"no answer in {_SECONDS:g} seconds")
  if isinstance(found[0], BaseException):
    raise found[0]
  return found[0]
