"""What a corpus leaves out, by name: documents and files, and why."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from resjax.base import locations

FILE_NAME = "dropped.tsv"  # in the folder of a corpus: a reason and a name in each line
SHOWN = 10  # names that are shown


class Dropped:
  """Counts documents that are left out, by reason, and keeps the first names.

  Args:
    file: gets a line for each left-out document; None: nothing is written.
  """

  def __init__(self, file: IO[str] | None = None):
    self.counts = dict.fromkeys(("duplicate", "empty", "undecodable"), 0)
    self._names: dict[str, list[str]] = {}
    self._file = file

  def add(self, reason: str, name: str) -> None:
    """Notes one document or file that is left out."""
    self.counts[reason] = self.counts.get(reason, 0) + 1
    names = self._names.setdefault(reason, [])
    if len(names) < SHOWN:
      names.append(name)
    if self._file is not None:
      self._file.write(f"{reason}\t{name}\n")

  def __str__(self) -> str:
    found = []
    for reason, count in self.counts.items():
      names = listed(self._names.get(reason, []), count)
      found.append(f"{count:,} {reason}" + f" ({names})" * bool(names))
    return ", ".join(found)


def listed(names: Iterable[str], count: int) -> str:
  """Returns the first names, and how many more there are of `count`."""
  first = list(islice(names, SHOWN))
  more = f" and {count - len(first):,} more" if first and count > len(first) else ""
  return ", ".join(first) + more


def read(folder: Path) -> Iterator[tuple[str, str]]:
  """Yields the reasons and names in the list of a corpus; older corpora have none.

  Args:
    folder: KIND/NAME-FINGERPRINT under a root.
  """
  try:
    with locations.open_regular(folder / FILE_NAME) as file:
      for line in file:
        reason, _, name = line.decode(errors="replace").rstrip("\n").partition("\t")
        yield reason, name
  except FileNotFoundError:
    return
