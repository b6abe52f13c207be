"""Built data under a root in an object store: every machine works on a copy of its own.

Rows are read in random order, one by one, and ArrayRecord writes to disks only.
"""

import json
import os
import shutil
from pathlib import Path

import fsspec

from resjax import locations
from resjax.locations import Location

_PARTIAL = ".partial-"  # before the name of a folder whose copy is not complete


def local(root: str) -> Path:
  """Returns the folder of this machine for what lies under a root.

  That is the root itself, or where it is gs://BUCKET/NAME, resjax/gs/BUCKET/NAME in the user's
  cache, $XDG_CACHE_HOME or ~/.cache.

  Args:
    root: `DataConfig.root`.

  Raises:
    ValueError: it is neither local nor gs://, or what reads gs:// is not installed.
  """
  place = _place(root)
  if locations.is_local(place):
    return place
  cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
  return cache.joinpath("resjax", *str(place).split("://"))


def fetch(root: str, name: str, proof: Path) -> bool:
  """Copies a folder to this machine unless it is here; returns whether it is here now.

  The caller holds `storage.exclusive`: what is here without its proof was left by a killed process,
  and is removed.

  Args:
    root: `DataConfig.root`.
    name: of the folder, relative to the root.
    proof: what is in the folder here if and only if all of it is.

  Raises:
    ValueError: the folder there is damaged.
  """
  if proof.exists():
    return True
  place, folder = _place(root), local(root) / name
  shutil.rmtree(folder, ignore_errors=True)
  if locations.is_local(place) or not _list(place, name).exists():
    return False
  partial = folder.with_name(f"{_PARTIAL}{folder.name}")
  shutil.rmtree(partial, ignore_errors=True)
  sizes = json.loads(_list(place, name).read_text())
  system, source = fsspec.core.url_to_fs(str(place / name))
  try:
    system.get([f"{source}/{file}" for file in sizes], [str(partial / file) for file in sizes])
    found = {file: (partial / file).stat().st_size for file in sizes}
  except FileNotFoundError as error:
    found = str(error)
  if found != sizes:
    raise ValueError(
      f"{place / name} is damaged: its files are not those of {_list(place, name)}; delete both, "
      "and the data are built anew"
    )
  os.rename(partial, folder)
  return True


def publish(root: str, name: str) -> None:
  """Copies a complete folder of this machine to the root, unless it is there; its list comes last.

  Args:
    root: `DataConfig.root`.
    name: of the folder, relative to the root.
  """
  place, folder = _place(root), local(root) / name
  if locations.is_local(place) or _list(place, name).exists():
    return
  locations.upload(folder, place / name)
  files = sorted(path for path in folder.rglob("*") if path.is_file())
  sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
  locations.write_text(_list(place, name), json.dumps(sizes, indent=1))


def fetch_file(root: str, name: str) -> Path | None:
  """Returns a small file of the root, copied to this machine unless it is here; None: it is not."""
  source, path = _place(root) / name, local(root) / name
  if not path.exists() and source.exists():
    locations.write_text(path, source.read_text())
  return path if path.exists() else None


def write_file(root: str, name: str, text: str) -> None:
  """Writes a small file here and to the root, unless it is there."""
  for place in (local(root) / name, _place(root) / name):
    if not place.exists():
      locations.write_text(place, text)


def _place(root: str) -> Location:
  return locations.path(root, "config.data.root", writable=True)


def _list(place: Location, name: str) -> Location:
  """The files of a folder with their sizes; it exists if and only if all of them do."""
  return place / f"{name}.files.json"
