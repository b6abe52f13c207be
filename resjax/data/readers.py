"""Readers of text, JSONL and Parquet files, one document at a time in bounded memory."""

import contextlib
import dataclasses
import gzip
import io
import json
from collections.abc import Iterator
from typing import TextIO

from resjax.data.config import SettingNames
from resjax.locations import Location

MAX_PIECE = 1 << 20  # Characters; a longer text file becomes several documents.
_BATCH_ROWS = 256  # Rows of a Parquet file that are in memory at a time.


@dataclasses.dataclass(frozen=True)
class Document:
  """A text and the place it came from; `text` is None where it is not valid Unicode."""

  id: str
  text: str | None


def read_text(path: Location, name: str, piece: int = MAX_PIECE) -> Iterator[Document]:
  """Yields the file as one document, or cut at line ends into pieces of about `piece` characters.

  Newlines stay as they are. A document that is not UTF-8 has no text and is the last one.
  """
  with _open(path, newline="") as file:
    part = 0
    while True:
      try:
        text = file.read(piece)
        text += file.readline(piece) if len(text) == piece else ""
      except UnicodeDecodeError:
        yield Document(f"{name}#{part}", None)
        return
      if not text and part:
        return
      yield Document(f"{name}#{part}", text)
      part += 1


def read_jsonl(path: Location, name: str, field: str, settings: SettingNames) -> Iterator[Document]:
  """Yields the string under `field` of every line that is not blank; null counts as empty.

  Raises:
    ValueError: A line is not a JSON object or lacks the field.
  """
  with _open(path) as file:
    for number, line in enumerate(_lines(file, path), 1):
      if line.strip():
        at = f"{path}:{number}"
        yield Document(f"{name}:{number}", _valid(_field(line, field, at, settings)))


def _lines(file: TextIO, path: Location) -> Iterator[str]:
  try:
    yield from file
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is not UTF-8 text, so not JSONL: {error.reason}") from error


def _field(line: str, field: str, at: str, settings: SettingNames) -> str:
  try:
    record = json.loads(line)
  except json.JSONDecodeError as error:
    raise ValueError(f"{at} is not JSON: {error.msg}; {settings.format} says jsonl") from error
  if not isinstance(record, dict):
    raise ValueError(f"{at} is not a JSON object but a {type(record).__name__}")
  if field not in record:
    raise ValueError(f"{at} has no field {field!r}; it has {sorted(record)}; set {settings.field}")
  text = record[field]
  if not isinstance(text, str | None):
    raise ValueError(f"{at}: {field!r} is a {type(text).__name__}, not text; set {settings.field}")
  return text or ""


def read_parquet(
  path: Location, name: str, field: str, settings: SettingNames
) -> Iterator[Document]:
  """Yields the strings in column `field`; null counts as empty.

  Raises:
    ValueError: The file is not Parquet, or has no text column of that name.
  """
  import pyarrow as pa
  import pyarrow.parquet as pq

  with path.open("rb") as raw:
    try:
      file = pq.ParquetFile(raw)
    except pa.ArrowInvalid as error:
      raise ValueError(f"{path} is not a Parquet file; set {settings.format}") from error
    schema = file.schema_arrow
    if field not in schema.names:
      raise ValueError(
        f"{path} has no column {field!r}; it has {schema.names}; set {settings.field}"
      )
    kind = schema.field(field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
      raise ValueError(f"{path}: column {field!r} holds {kind}, not text; set {settings.field}")
    number = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[field]):
      for text in batch.column(0).to_pylist():
        yield Document(f"{name}:{number}", text or "")
        number += 1


@contextlib.contextmanager
def _open(path: Location, newline: str | None = "\n") -> Iterator[TextIO]:
  with contextlib.ExitStack() as stack:
    raw = stack.enter_context(path.open("rb"))
    if path.suffix == ".gz":
      raw = stack.enter_context(gzip.GzipFile(fileobj=raw))
    yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline=newline))


def _valid(text: str) -> str | None:
  """Returns the text, or None if JSON spelled half a surrogate pair, which UTF-8 cannot hold."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return None
  return text
