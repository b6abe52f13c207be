"""Which built data which runs use, and the removal of those that none does."""

import dataclasses
import fcntl
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from resjax.base import Damaged, Location, locations, manifest
from resjax.data import built, dataset, mirror, storage
from resjax.train.runs import workdir

# Folders in a workdir that hold no other runs.
_WITHOUT_RUNS = ("checkpoints", "plots", "profile", "tensorboard", "wandb")
_DAY = 86_400.0  # seconds


@dataclasses.dataclass(frozen=True)
class BuiltFolder:
  """A folder of built data.

  Attributes:
    name: KIND/NAME-FINGERPRINT.
    bytes: the size of its files as its manifest has it; 0 where that is damaged.
    days: how long ago it was built.
    runs: the folders of the runs that use it.
  """

  name: str
  bytes: int
  days: float
  runs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Use:
  """What lies under a root, and who uses it.

  Attributes:
    folders: all folders of built data.
    summaries: the names of the files of summaries that no run has the fingerprint of.
    runs: the number of runs that were found.
    unknown: in words, why it is not known what some run uses; empty where all is known.
  """

  folders: tuple[BuiltFolder, ...]
  summaries: tuple[str, ...]
  runs: int
  unknown: tuple[str, ...]

  @property
  def unused(self) -> list[BuiltFolder]:
    """The folders that no run uses."""
    return [folder for folder in self.folders if not folder.runs]


def find(root: str, places: Iterable[Location]) -> Use:
  """Returns the built data under a root, and which runs below some folders use them.

  Args:
    root: a local `DataConfig.root`.
    places: the folders below which runs are looked for, links included.

  Raises:
    ValueError: the root is in an object store, or one of the folders is not there.
  """
  here = _local(root)
  users, unknown = _users(here, places)
  parts: dict[str, set[str]] = {}
  idle = []
  for path in sorted(here.glob("summary-*.json")):
    mark = path.stem.removeprefix("summary-")
    runs = users.get(mark, [])
    try:
      names = dataset.parts(root, mark)
    except ValueError as error:
      names = []
      if runs:
        unknown.append(str(error))
    if not runs:
      idle.append(path.name)
    for name in names:
      parts.setdefault(name, set()).update(runs)
  for mark, runs in users.items():
    if runs and not (here / f"summary-{mark}.json").exists() and _is_root_of(here, runs):
      unknown.append(f"the data of {runs[0]} have no summary-{mark}.json; start that run again")
  folders = [
    BuiltFolder(name, *_size_and_age(here / name), tuple(sorted(parts.get(name, ()))))
    for kind in built.KINDS
    for name in sorted(f"{kind}/{path.name}" for path in (here / kind).glob("[a-z]*-*"))
  ]
  return Use(tuple(folders), tuple(idle), sum(map(len, users.values())), tuple(unknown))


def prune(root: str, places: Collection[Location]) -> Use:
  """Deletes the built data under a root that no run uses; returns what `find` returned before.

  No process builds under the root meanwhile.

  Raises:
    ValueError: see `find`; or it is not known what some run uses; or the root cannot be locked.
  """
  here = _local(root)
  with storage.exclusive(here) as locked:
    if not locked:
      raise ValueError(f"{here} cannot be locked, so nothing is deleted: a process may build there")
    found = find(root, places)
    if found.unknown:
      raise ValueError(f"nothing is deleted: {'; '.join(found.unknown)}")
    # Summaries go first: one whose parts are gone would be called damaged.
    for name in found.summaries:
      locations.remove(here / name)
    for folder in found.unused:
      locations.remove(here / folder.name)
    built.sweep(here)
  return found


def _local(root: str) -> Path:
  if mirror.is_mirrored(root):
    raise ValueError(
      f"config.data.root={root} is in an object store, whose own tools list and delete; its copy "
      f"on this machine is --config.data.root={mirror.local(root)}"
    )
  return mirror.local(root)


def _users(here: Path, places: Iterable[Location]) -> tuple[dict[str, list[str]], list[str]]:
  """Returns the folders of runs by the fingerprint of their data, and problems with some runs."""
  users: dict[str, list[str]] = {}
  unknown = []
  for folder in _workdirs(here, places):
    record = None
    if _leads_nowhere(folder):
      unknown.append(f"{folder} is a link that leads nowhere; mount its disk, or remove the link")
      continue
    try:
      if (folder / workdir.RECORD).exists():
        record = workdir.read(folder)
        users.setdefault(record.data_fingerprint, []).append(str(folder))
    except ValueError as error:
      unknown.append(str(error))
    # Until its first step, the record of a run does not say which data it is about to use.
    if (record is None or not record.parts) and _is_held(folder):
      unknown.append(f"{folder} is starting; wait for its first step")
  return users, unknown


def _workdirs(here: Path, places: Iterable[Location]) -> Iterator[Location]:
  """Yields the folders below some folders, but for the root, that hold a run or a starting one.

  A run may also be behind a link that leads nowhere, which is yielded in its place.
  """
  seen: set[Location] = {here.resolve()}
  todo = list(places)
  for place in todo:
    if not place.is_dir():
      raise ValueError(f"--runs={place} is no folder; name those below which runs lie")
  while todo:
    folder = todo.pop()
    real = folder.resolve() if locations.is_local(folder) else folder
    if real in seen:
      continue
    seen.add(real)
    inside = sorted(folder.iterdir())
    if {workdir.RECORD, workdir.LOCK} & {path.name for path in inside}:
      yield folder
    yield from filter(_leads_nowhere, inside)
    todo += [path for path in inside if path.name not in _WITHOUT_RUNS and path.is_dir()]


def _leads_nowhere(place: Location) -> bool:
  """Returns whether a path is a dangling link, as to a disk that is not mounted."""
  return locations.is_local(place) and Path(place).is_symlink() and not Path(place).exists()


def _is_held(folder: Location) -> bool:
  """Returns whether a process trains in a folder, as its lock says."""
  if not locations.is_local(folder) or not (folder / workdir.LOCK).exists():
    return False
  try:
    with locations.open_lock(Path(folder / workdir.LOCK)) as file:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:  # also where it cannot be told
    return True
  return False


def _is_root_of(here: Path, runs: Iterable[str]) -> bool:
  """Returns whether the data of a run lay in a folder, as its record says."""
  roots = [_root_of(workdir.read(workdir.place(run)).config) for run in runs]
  return any(root and Path(root).resolve() == here.resolve() for root in roots)


def _root_of(config: Mapping) -> str | None:
  data = config.get("data")
  root = data.get("root") if isinstance(data, Mapping) else None
  return root if isinstance(root, str) and "://" not in root else None


def _size_and_age(folder: Path) -> tuple[int, float]:
  try:
    size = sum(size for size, _ in manifest.read(folder).files.values())
  except Damaged:
    size = 0
  file = folder / manifest.FILE_NAME
  return size, (time.time() - (file if file.exists() else folder).stat().st_mtime) / _DAY
