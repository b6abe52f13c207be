"""Stores digests of the documents of sources, so that unchanged files are read only once.

An entry is found by the names, sizes and times of the files, or by the checksums that an object
store keeps. It saves time and decides nothing: where it is missing or damaged, the text is read.
Entries about objects lie in `config.data.root` for all machines, those about files of this machine
in its copy of that folder. In all functions `root` is `DataConfig.root`.
"""

import dataclasses
import json

from absl import logging

from resjax.base import Location, locations, typed_json
from resjax.data import mirror, storage
from resjax.data.sources import Source
from resjax.data.text_digest import TextDigest

_FOLDER = "digests"


@dataclasses.dataclass(frozen=True)
class _Entry:
  """The content of a file: the digest of a source's documents, and the file's name when written.

  A file that was renamed, or copied to the place of another, does not have its own name.
  """

  name: str
  text: TextDigest


def load(root: str, source: Source) -> TextDigest | None:
  """Returns the digest of the documents of a source, or None if it is not known."""
  for place in _places(root, source):
    try:
      found = typed_json.read(place, _Entry)
    except (OSError, ValueError):
      continue
    if found.name == place.name and found.text.is_whole:
      return found.text
  return None


def save(root: str, source: Source, digest: TextDigest) -> None:
  """Stores the digest of the documents of a source; deletes local digests of earlier versions."""
  if not source.settled:
    return
  here, *_ = places = _places(root, source)
  try:
    for place in places:
      locations.write_text(place, json.dumps(dataclasses.asdict(_Entry(place.name, digest))))
    for other in here.parent.glob(f"{here.name.partition('-')[0]}-*.json"):
      if other.name != here.name:
        other.unlink(missing_ok=True)
  except OSError as error:
    logging.warning("the text of %s is read at every start: %s", source.place, error)


def forget(root: str, source: Source) -> None:
  """Drops the entry of a source, because its documents are not those that the entry says."""
  for place in _places(root, source):
    place.unlink(missing_ok=True)


def _places(root: str, source: Source) -> list[Location]:
  """Returns where the entry of a source may be: on this machine, and in an object store."""
  name = f"{storage.fingerprint(source.place)}-{storage.fingerprint(source.stamps)}.json"
  shared = not source.is_local and str(mirror.local(root)) != root
  roots = [mirror.local(root), *([locations.path(root, "config.data.root")] if shared else [])]
  return [place / _FOLDER / name for place in roots]
