"""Writes a text of any size, of the sources of Python's library: repeated, but never the same."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from resjax.data import corpus_files

_FILE_BYTES = 64_000_000  # of a file, which has one JSON object for each document


def write(folder: Path, megabytes: int, library: Path) -> None:
  """Writes documents until they have so many megabytes of UTF-8.

  The first time each source file is a document as it is. Then its lines come in other orders, so
  that no document is a duplicate, and words are as frequent as before.

  Args:
    folder: is made, and gets the files.
    megabytes: the size of the text; the last document is whole.
    library: the folder of the source files.

  Raises:
    ValueError: there are no such files.
  """
  folder.mkdir(parents=True)
  left, documents, number = megabytes * 10**6, _documents(library), 0
  while left > 0:
    with (folder / f"{number:04}.jsonl").open("w") as file:
      room = _FILE_BYTES
      while min(left, room) > 0:
        text = next(documents)
        size = len(text.encode())
        left, room = left - size, room - size
        file.write(json.dumps({"text": text}) + "\n")
    number += 1


def _documents(library: Path) -> Iterator[str]:
  """Yields documents without an end."""
  paths = [file.path for file in corpus_files.under(library, ".py")]
  texts = [text for path in paths if (text := Path(path).read_text(errors="ignore")).strip()]
  if not texts:
    raise ValueError(f"{library} has no .py files, of which the text is made; name another folder")
  yield from texts
  order = random.Random(0)
  while True:
    for text in texts:
      lines = text.splitlines(keepends=True)
      order.shuffle(lines)
      yield "".join(lines)
