"""Folders of built data, KIND/NAME-FINGERPRINT under a root: complete as their manifest says.

A folder is filled under another name, gets its manifest last, and then its own name. Whoever reads
it compares it with the manifest first. Code that reads does not write outside the user's cache.
"""

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from absl import logging

from resjax.base import Damaged, locations, manifest, typed_json
from resjax.data import mirror
from resjax.data.config import VERIFY

CORPORA, TOKENIZERS, ROWS = KINDS = ("corpora", "tokenizers", "rows")

Count = Annotated[int, msgspec.Meta(ge=0)]

_PARTIAL = ".partial-"  # the prefix of the name of a folder while it is filled
_NAME = r"[a-z][a-z0-9_-]*-[0-9a-f]{12}"
_MANY = 1 << 30  # bytes, whose comparison takes a second or more
_SMALL = 1 << 20  # bytes; smaller files are always read: they say how the others are read


@dataclasses.dataclass(frozen=True)
class SplitFacts:
  """What the manifest says about a split.

  Attributes:
    counts: how much the split holds: `documents` and `bytes`, or `rows` and `tokens`.
    shards: the file of each shard, relative to the folder, and its number of records, in order.
  """

  counts: dict[str, Count]
  shards: list[tuple[str, Count]]


@dataclasses.dataclass(frozen=True)
class Facts:
  """What the manifest says about a folder.

  Attributes:
    kind: one of `KINDS`.
    fingerprint: names the content.
    splits: the splits of a corpus, or of its rows.
    dropped: the number of documents that a corpus left out, by reason.
    seq_len: T of rows.
    vocab_size: V of a tokenizer, and of the rows that it made.
    form: what rows hold, see `storage.row_features`; earlier releases did not say it.
  """

  kind: str
  fingerprint: str
  splits: dict[str, SplitFacts] = dataclasses.field(default_factory=dict)
  dropped: dict[str, Count] = dataclasses.field(default_factory=dict)
  seq_len: Count = 0
  vocab_size: Count = 0
  form: Count = 0


def prepare(
  root: str,
  name: str,
  verify: str,
  make: Callable[[Path], Facts],
  progress: Callable[[str, int, int], None],
) -> Path:
  """Builds a folder unless an intact one exists; returns it.

  What is damaged is named, and is built anew. The caller holds `storage.exclusive`.

  Args:
    root: `DataConfig.root`.
    name: KIND/NAME-FINGERPRINT.
    verify: `DataConfig.verify`.
    make: fills an empty folder, and returns its facts.
    progress: a `storage.Progress`, which is called in a comparison that takes long.

  Raises:
    ValueError: It could not be built; nothing of it is left.
  """
  folder = Path(locations.inside(mirror.local(root), name, "a folder under config.data.root"))
  if verify == VERIFY[0] and _bytes(folder) > _MANY:
    progress(f"comparing {name} with its manifest", 0, 0)
  reason = _problem(root, name, verify)
  if reason is not None:
    if reason:
      logging.warning("%s is built anew: %s", folder, reason)
    with explained(folder, reason), _replaced(folder) as partial:
      manifest.write(partial, dataclasses.asdict(make(partial)))
  with explained(folder, ""):
    mirror.publish(root, name, replace=bool(reason))
  return folder


def find(root: str, name: str, verify: str, checked: Collection[str] = ()) -> Facts:
  """Checks a folder that was built, which is copied from an object store if it is not here.

  Args:
    root: `DataConfig.root`.
    name: KIND/NAME-FINGERPRINT.
    verify: `DataConfig.verify`.
    checked: stamps of folders whose files need not be read, see `stamp`.

  Returns:
    The facts in its manifest.

  Raises:
    Damaged: It is missing, or differs from its manifest.
  """
  reason = _problem(root, name, verify, checked)
  folder = mirror.local(root) / name
  if reason is not None:
    raise Damaged(
      f"{folder} is {f'damaged: {reason}' if reason else 'missing'}; build it anew with "
      "resjax build_dataset and the config of the run, or bring back a copy of config.data.root"
    )
  return facts(folder)


def _problem(root: str, name: str, verify: str, checked: Collection[str] = ()) -> str | None:
  """Returns a reason if a folder is damaged, an empty text if it is missing, None if it is intact.

  If the root is in an object store, a missing or damaged local copy is downloaded first.
  """
  folder, reason = mirror.local(root) / name, ""
  if folder.exists() or folder.is_symlink():
    try:
      check(folder, verify, checked)
    except Damaged as error:
      reason = str(error)
    else:
      return None
  if not mirror.is_mirrored(root) or not mirror.has(root, name):
    return reason
  if reason:
    logging.warning("%s is copied anew from %s: %s", folder, root, reason)
  try:
    with explained(folder, reason), _replaced(folder) as partial:
      mirror.download(root, name, partial)
      check(partial, verify)
  except Damaged as error:
    return f"{root.rstrip('/')}/{name} is not as it was written: {error}"
  return None


def check(folder: Path, verify: str, checked: Collection[str] = ()) -> None:
  """Compares a folder with its manifest, and with its own name.

  Args:
    folder: KIND/NAME-FINGERPRINT under a root.
    verify: `DataConfig.verify`.
    checked: see `find`.

  Raises:
    Damaged: The folder differs from its manifest or its name.
  """
  if not (folder / manifest.FILE_NAME).exists():
    raise Damaged(
      f"it has no {manifest.FILE_NAME}, as data have that were built by resjax 0.2.0 or before"
    )
  found = facts(folder)
  kind, mark = folder.parent.name, folder.name.rpartition("-")[2]
  if (found.kind, found.fingerprint) != (kind, mark):
    raise Damaged(f"it holds {found.kind} {found.fingerprint}, so it was renamed or swapped")
  whole = verify == VERIFY[0] and stamp(folder) not in checked
  manifest.check(folder, largest=math.inf if whole else _SMALL, alone=True)


def facts(folder: Path) -> Facts:
  """Returns the facts in the manifest of a folder.

  Raises:
    Damaged: The manifest is missing or damaged.
  """
  found = manifest.read(folder)
  where = f"facts of {folder / manifest.FILE_NAME}"
  try:
    said = typed_json.parse(json.dumps(found.facts), Facts, where)
  except ValueError as error:
    raise Damaged(str(error)) from None
  for split, parts in said.splits.items():
    for file, _ in parts.shards:
      if file not in found.files:
        raise Damaged(f"{where}: shard {file!r} of {split} is no file of the folder")
  return said


def _bytes(folder: Path) -> int:
  """Returns the size of the files of a folder as its manifest has it; 0 if it is damaged."""
  try:
    return sum(size for size, _ in manifest.read(folder).files.values())
  except Damaged:
    return 0


def stamp(folder: Path) -> str:
  """Returns a text that is equal for two processes if and only if they see the same folder."""
  found = (folder / manifest.FILE_NAME).stat()
  return f"{folder.name} {found.st_ino} {found.st_mtime_ns} {found.st_size}"


def folder_name(root: str, name: str, kind: str, where: str) -> str:
  """Returns KIND/NAME-FINGERPRINT of a name in a file that anybody may have written.

  Args:
    root: `DataConfig.root`.
    name: the name of the folder, or of what lies in it, relative to the root.
    kind: one of `KINDS`.
    where: the file and key that hold the name, for messages.

  Raises:
    ValueError: It is no such name, or leads out of the root.
  """
  locations.inside(mirror.local(root), name, where)
  top = "/".join(PurePosixPath(name).parts[:2])
  if not re.fullmatch(f"{kind}/{_NAME}", top):
    raise ValueError(f"{where} is {name!r}; allowed: {kind}/NAME-FINGERPRINT/...")
  return top


def sweep(root: Path) -> None:
  """Removes what killed builds left under a root that no other process builds under."""
  for kind in KINDS:
    for path in (root / kind).glob(f"{_PARTIAL}*"):
      if re.fullmatch(_NAME, path.name.removeprefix(_PARTIAL)):
        locations.remove(path)
  for path in root.glob(".summary-*.json.partial"):
    locations.remove(path)


@contextlib.contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
  """Gives an empty folder to fill, which takes the place of `folder` once that has succeeded."""
  partial = folder.with_name(f"{_PARTIAL}{folder.name}")
  try:
    locations.remove(partial)
    partial.mkdir(parents=True)
    yield partial
    locations.remove(folder)
    partial.rename(folder)
  finally:
    locations.remove(partial)


@contextlib.contextmanager
def explained(place: Path, reason: str) -> Iterator[None]:
  """Turns the error of a full disk, or of a file that vanished, into a ValueError of one line.

  Args:
    place: the file or folder that is being written.
    reason: why it is written again, if it existed before.
  """
  try:
    yield
  except (OSError, RuntimeError) as error:  # ArrayRecord raises RuntimeError itself
    if type(error) is not RuntimeError and not isinstance(error, OSError):
      raise
    cause = " ".join(str(error).split())
    why = f" anew although {reason}" if reason else ""
    way = locations.way_out(error) or "see that all sources are there"
    raise ValueError(
      f"{place} was not written{why}: {cause}; nothing of it is left: {way}, or set "
      "config.data.root to another folder, and the same command goes on"
    ) from error
