"""Readers of text, JSON and Parquet files, one document at a time in bounded memory."""

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from resjax.base import Location, locations
from resjax.data import corpus_files, json_text, plain_bytes
from resjax.data.config import SettingNames

MAX_PIECE = 1 << 20  # Characters; a longer text file becomes several documents.
# Bytes of a document, and characters of JSON that holds one. BPE needs about 100 bytes for each.
MAX_LINE = 16 << 20
_TAR, _TAR_AT = "ustar", 257  # what an archive has there; most of its bytes may be those of a text
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

  Newlines stay as they are. What is not UTF-8, or a tar archive, has no text and is the last one.
  """
  with plain_bytes.opened(path) as raw, io.TextIOWrapper(raw, "utf-8", newline="") as file:
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
      if not part and text[_TAR_AT:].startswith(_TAR):
        yield Document(f"{name}#{part}", None)
        return
      yield Document(f"{name}#{part}", text)
      part += 1


def objects(file: IO[bytes], shown: str) -> Iterator[tuple[str, Any]]:
  """Yields JSON values and their places; raises the errors of `json_text.values`."""
  return json_text.values(file, shown, MAX_LINE, _too_long(""))


def read_json(path: Location, name: str, field: str, settings: SettingNames) -> Iterator[Document]:
  """Yields the string under `field` of every object; null counts as empty.

  The objects stand one after another, on lines of their own or not, or in an array.

  Raises:
    ValueError: The file is not JSON; or a value is no object, lacks the field, or holds more than
      `MAX_LINE` bytes.
  """
  shown = corpus_files.spelled(path)
  with plain_bytes.opened(path) as file:
    try:
      for place, value in objects(file, shown):
        text = _field(value, field, f"{shown}{place}", settings)
        yield Document(f"{name}{place}", _valid(text, f"{shown}{place}"))
    except json_text.NotJsonError as error:
      remedy = f"mend it, or set {settings.format}=text to read the file as it stands"
      raise ValueError(f"{error}; {remedy}") from None


def _too_long(at: str) -> str:
  return (
    f"{at} has more than {MAX_LINE:,} bytes, the most that a JSON object or a document may have; "
    "cut it into several documents"
  ).lstrip()


def _field(record: Any, field: str, at: str, settings: SettingNames) -> str:
  if not isinstance(record, dict):
    raise ValueError(f"{at} is not a JSON object but a {type(record).__name__}")
  if field not in record:
    remedy = f"set {settings.field}, or {settings.format}=text to read the file as it stands"
    remedy += _inside(record)
    raise ValueError(f"{at} has no field {field!r}; it has {_some(record)}; {remedy}")
  text = record[field]
  if not isinstance(text, str | None):
    raise ValueError(f"{at}: {field!r} is a {type(text).__name__}, not text; set {settings.field}")
  return text or ""


def _inside(record: Mapping[str, Any]) -> str:
  """Returns what to do with an object that holds a list of objects under one of its keys."""
  for key, value in record.items():
    if isinstance(value, list) and value and isinstance(value[0], dict):
      return f"; or write the objects in {key[:_MOST_CHARACTERS]!r} into a file, one in each line"
  return ""


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
      if packed := plain_bytes.compression(path):
        raise ValueError(f"{shown} is Parquet inside of a {packed} file; decompress it") from None
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


def _valid(text: str, at: str) -> str | None:
  """Returns the text, or None if JSON spelled half a surrogate pair, which UTF-8 cannot hold.

  Raises:
    ValueError: It has more than `MAX_LINE` bytes.
  """
  try:
    size = len(text.encode())
  except UnicodeEncodeError:
    return None
  if size > MAX_LINE:
    raise ValueError(_too_long(at))
  return text
