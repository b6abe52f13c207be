"""Built data in an object store, of which every machine keeps and reads a copy on its disk.

Rows are read one by one in random order, and ArrayRecord can write to disks alone. In all functions
`root` is `DataConfig.root`, and `name` is relative to it.
"""

import json
import os
import shutil
from pathlib import Path

import fsspec

from resjax import locations
from resjax.locations import Location

_PARTIAL = ".partial-"  # Prefix of the name of a folder while it is being copied.


def local(root: str) -> Path:
  """Returns the folder on this machine that holds the data of a root.

  A local root is this folder itself. For gs://BUCKET/NAME it is resjax/gs/BUCKET/NAME in the cache
  of the user, which is $XDG_CACHE_HOME or ~/.cache.

  Raises:
    ValueError: The root is neither local nor gs://, or the package for gs:// is not installed.
  """
  place = _place(root)
  if locations.is_local(place):
    return place
  cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
  return cache.joinpath("resjax", *str(place).split("://"))


def fetch(root: str, name: str, proof: Path) -> bool:
  """Copies a folder to this machine unless it is here, and returns whether it is here now.

  The caller holds `storage.exclusive`, so a folder without its proof was left by a process that was
  killed; it is removed.

  Args:
    root: `DataConfig.root`.
    name: the folder, relative to the root.
    proof: a path in the folder on this machine that exists if and only if the folder is complete.

  Raises:
    ValueError: The folder in the object store is damaged.
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
  except FileNotFoundError:
    found = {}
  if found != sizes:
    raise ValueError(
      f"{place / name} is damaged: its files are not those of {_list(place, name)}; delete both, "
      "and the data are built anew"
    )
  os.rename(partial, folder)
  return True


def publish(root: str, name: str) -> None:
  """Copies a complete folder of this machine to the root unless it is there, its list last."""
  place, folder = _place(root), local(root) / name
  if locations.is_local(place) or _list(place, name).exists():
    return
  locations.upload(folder, place / name)
  files = sorted(path for path in folder.rglob("*") if path.is_file())
  sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
  locations.write_text(_list(place, name), json.dumps(sizes, indent=1))


def fetch_file(root: str, name: str) -> Path | None:
  """Returns a small file, copied from the root if it is not here; None if it is nowhere."""
  source, path = _place(root) / name, local(root) / name
  if not path.exists() and source.exists():
    locations.write_text(path, source.read_text())
  return path if path.exists() else None


def write_file(root: str, name: str, text: str) -> None:
  """Writes a small file on this machine and to the root, unless it is there."""
  for place in (local(root) / name, _place(root) / name):
    if not place.exists():
      locations.write_text(place, text)


def _place(root: str) -> Location:
  return locations.path(root, "config.data.root", writable=True)


def _list(place: Location, name: str) -> Location:
  """Returns the path of the list of a folder's files, which exists once all files do."""
  return place / f"{name}.files.json"
