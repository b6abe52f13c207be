"""Readers of text, JSONL and Parquet files, one document at a time in bounded memory."""

import contextlib
import dataclasses
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from resjax import locations
from resjax.data import corpus_files
from resjax.data.config import SettingNames
from resjax.locations import Location

MAX_PIECE = 1 << 20  # Characters; a longer text file becomes several documents.
# Bytes of a line of JSONL, and of a document of Parquet. BPE needs about 100 bytes for each.
MAX_LINE = 16 << 20
_MOST_NAMES, _MOST_CHARACTERS = 20, 40  # Of fields and columns, in messages.
_BATCH_ROWS = 256  # Rows of a Parquet file that are in memory at a time,
_BATCH_BYTES = 64 << 20  # if they have so many bytes at most by the average of their row group.


@dataclasses.dataclass(frozen=True)
class Document:
  """A text and the place it came from; `text` is None where it is not valid Unicode."""

  id: str
  text: str | None


def read_text(path: Location, name: str, piece: int = MAX_PIECE) -> Iterator[Document]:
  """Yields the file as one document, or cut at line ends into pieces of about `piece` characters.

  Newlines stay as they are. A document that is not UTF-8 has no text and is the last one.
  """
  with _open(path) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as file:
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
    ValueError: A line is not a JSON object, lacks the field, or has more than `MAX_LINE` bytes.
  """
  shown = corpus_files.spelled(path)
  with _open(path) as file:
    number = 0
    while line := file.readline(MAX_LINE + 1):
      number += 1
      if len(line) > MAX_LINE:
        raise ValueError(_too_long(f"{shown}:{number}"))
      try:
        text = line.decode()
      except UnicodeDecodeError as error:
        reason = f"{error.reason} in line {number}"
        raise ValueError(f"{shown} is not UTF-8 text, so not JSONL: {reason}") from None
      if text.strip():
        found = _field(text, field, f"{shown}:{number}", settings)
        yield Document(f"{name}:{number}", _valid(found))


def _too_long(at: str) -> str:
  return (
    f"{at} has more than {MAX_LINE:,} bytes, the most that a line of JSONL or a document may have; "
    "cut it into several documents"
  )


def _field(line: str, field: str, at: str, settings: SettingNames) -> str:
  record = _json(line, at, settings)
  if not isinstance(record, dict):
    raise ValueError(f"{at} is not a JSON object but a {type(record).__name__}")
  if field not in record:
    raise ValueError(f"{at} has no field {field!r}; it has {_some(record)}; set {settings.field}")
  text = record[field]
  if not isinstance(text, str | None):
    raise ValueError(f"{at}: {field!r} is a {type(text).__name__}, not text; set {settings.field}")
  return text or ""


def _json(line: str, at: str, settings: SettingNames) -> Any:
  try:
    return json.loads(line)
  except json.JSONDecodeError as error:
    raise ValueError(f"{at} is not JSON: {error.msg}; {settings.format} says jsonl") from None
  except RecursionError:
    raise ValueError(f"{at} is nested too deeply") from None
  except ValueError:  # Python converts no text of more than some thousand digits.
    raise ValueError(f"{at} has a number with too many digits") from None


def _some(names: Iterable[str]) -> str:
  """Returns the first names in order, as a list; no more than fit into a line."""
  ordered = sorted(names)
  more = f" and {len(ordered) - _MOST_NAMES} more" if len(ordered) > _MOST_NAMES else ""
  return f"{[name[:_MOST_CHARACTERS] for name in ordered[:_MOST_NAMES]]}{more}"


def read_parquet(
  path: Location, name: str, field: str, settings: SettingNames
) -> Iterator[Document]:
  """Yields the strings in column `field`; null counts as empty.

  Raises:
    ValueError: The file is not Parquet or damaged, has no text column of that name, or a document
      of more than `MAX_LINE` bytes.
  """
  import pyarrow as pa
  import pyarrow.parquet as pq

  shown = corpus_files.spelled(path)
  with locations.open_regular(path) as raw:
    try:
      file = pq.ParquetFile(raw)
    except (pa.ArrowException, OSError) as error:
      wrong = str(error).splitlines()[0]
      raise ValueError(f"{shown} is not a Parquet file; set {settings.format}: {wrong}") from None
    schema = file.schema_arrow
    if field not in schema.names:
      columns = _some(schema.names)
      raise ValueError(f"{shown} has no column {field!r}; it has {columns}; set {settings.field}")
    kind = schema.field(field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
      raise ValueError(f"{shown}: column {field!r} holds {kind}, not text; set {settings.field}")
    rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // _row_bytes(file.metadata, field, shown)))
    number = 0
    try:
      for batch in file.iter_batches(batch_size=rows, columns=[field]):
        for row in batch.column(0):
          text = row.as_buffer()
          if text is not None and text.size > MAX_LINE:
            raise ValueError(_too_long(f"{shown}:{number}"))
          yield Document(f"{name}:{number}", _decoded(text))
          number += 1
    except (pa.ArrowException, OSError) as error:
      wrong = str(error).splitlines()[0]
      raise ValueError(f"{shown} is damaged after {number} rows: {wrong}; replace it") from None


def _row_bytes(metadata: Any, field: str, shown: str) -> int:
  """Returns the largest average length of the texts of a row group, by the end of the file.

  Raises:
    ValueError: The average is above `MAX_LINE`.
  """
  largest = 1
  for group in range(metadata.num_row_groups):
    columns = metadata.row_group(group)
    for column in map(columns.column, range(columns.num_columns)):
      if column.path_in_schema == field:
        largest = max(largest, column.total_uncompressed_size // max(column.num_values, 1))
  if largest > MAX_LINE:
    raise ValueError(_too_long(f"{shown}: the average document of a row group"))
  return largest


def _decoded(buffer: Any) -> str | None:
  try:
    return bytes(buffer or b"").decode()
  except UnicodeDecodeError:
    return None


@contextlib.contextmanager
def _open(path: Location) -> Iterator[IO[bytes]]:
  """Opens a file to read its bytes, without compression where its name ends in .gz.

  Raises:
    ValueError: It is no regular file; or, while the context lasts, its compression is damaged.
  """
  with contextlib.ExitStack() as stack:
    raw: Any = stack.enter_context(locations.open_regular(path))
    if path.suffix == ".gz":
      raw = stack.enter_context(gzip.GzipFile(fileobj=raw))
    elif not isinstance(raw, io.BufferedReader):  # Lines of objects could not be bounded.
      raw = stack.enter_context(io.BufferedReader(raw))
    try:
      yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      shown = corpus_files.spelled(path)
      raise ValueError(f"{shown} is a damaged gzip file: {error}; replace it") from None


def _valid(text: str) -> str | None:
  """Returns the text, or None if JSON spelled half a surrogate pair, which UTF-8 cannot hold."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return None
  return text
