"""Built data in an object store, of which every machine keeps and reads a copy on its disk.

Rows are read one by one in random order, and ArrayRecord can write to disks alone. In all functions
`root` is `DataConfig.root`, and `name` is relative to it.
"""

import os
from pathlib import Path

import fsspec

from resjax.base import Location, locations, manifest


def local(root: str) -> Path:
  """Returns the folder on this machine that holds the data of a root.

  A local root is this folder itself. For gs://BUCKET/NAME it is resjax/gs/BUCKET/NAME in the cache
  of the user, which is $XDG_CACHE_HOME or ~/.cache.

  Raises:
    ValueError: The root is neither local nor gs://, or the package for gs:// is not installed; or
      its name leads out of the cache; or the user has no cache.
  """
  place = _place(root)
  if isinstance(place, Path):
    return place
  cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
  if str(cache).startswith("~"):  # a user without $HOME whom /etc/passwd does not know
    raise ValueError(
      f"config.data.root={root!r} is copied to the cache of the user, who has no home folder; set "
      "$XDG_CACHE_HOME"
    )
  name = str(place).rstrip("/").replace("://", "/")
  return Path(locations.inside(cache / "resjax", name, f"config.data.root={root!r} in the cache"))


def is_mirrored(root: str) -> bool:
  """Returns whether the root is in an object store, so that `local` is a copy in the cache."""
  return not locations.is_local(_place(root))


def has(root: str, name: str) -> bool:
  """Returns whether a folder in the object store is complete."""
  return (_place(root) / name / manifest.FILE_NAME).exists()


def download(root: str, name: str, folder: Path) -> None:
  """Copies a folder of the object store into an empty folder of this machine.

  Raises:
    Damaged: The manifest is damaged, or a file that it lists is missing.
  """
  place = _place(root) / name
  files = [*manifest.read(place).files, manifest.FILE_NAME]
  system, source = fsspec.core.url_to_fs(str(place))
  try:
    system.get([f"{source}/{file}" for file in files], [str(folder / file) for file in files])
  except FileNotFoundError:
    missing = next((file for file in files if not (place / file).exists()), "a file")
    raise manifest.Damaged(f"{missing} is missing") from None


def publish(root: str, name: str, *, replace: bool) -> None:
  """Copies a complete folder of this machine to the object store, its manifest last.

  Args:
    root: see above.
    name: the folder.
    replace: whether to do so also where the store has a manifest of the folder.
  """
  place = _place(root)
  if locations.is_local(place) or (has(root, name) and not replace):
    return
  (place / name / manifest.FILE_NAME).unlink(missing_ok=True)
  locations.upload(local(root) / name, place / name, last=manifest.FILE_NAME)


def fetch_file(root: str, name: str, *, anew: bool = False) -> Path | None:
  """Returns a small file, copied from the root if it is not here; None if it is nowhere.

  Args:
    root: see above.
    name: the file.
    anew: whether the copy of an object store is copied again.
  """
  source, path = _place(root) / name, local(root) / name
  if is_mirrored(root) and (anew or not path.exists()) and source.exists():
    locations.write_text(path, source.read_text())
  return path if path.exists() else None


def write_file(root: str, name: str, text: str) -> None:
  """Writes a small file on this machine and to the root, unless it is there and the same."""
  for place in (local(root) / name, _place(root) / name):
    if not holds(place, text):
      locations.write_text(place, text)


def holds(place: Location, text: str) -> bool:
  """Returns whether a place is a file with this text."""
  try:
    return locations.read_bytes(place, len(text.encode())) == text.encode()
  except (OSError, ValueError):
    return False


def _place(root: str) -> Location:
  return locations.path(root, "config.data.root", writable=True)
