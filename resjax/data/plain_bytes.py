"""The text of a file as UTF-8: without compression, and without a byte order mark.

The first bytes of a file tell how it is compressed and encoded, whatever its name is.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from resjax.base import Location, locations
from resjax.data import corpus_files

_COMPRESSED = {
  "gzip": rb"\x1f\x8b\x08",
  "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
  "xz": rb"\xfd7zXZ\0",
  "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
  "lz4": rb"\x04\x22\x4d\x18",
}
_MAGIC = 16  # bytes that tell the compression
# What names of compressed files end in, and what they are compressed with.
ENDINGS = {
  ".gz": "gzip",
  ".bz2": "bzip2",
  ".xz": "xz",
  ".zst": "zstd",
  ".zstd": "zstd",
  ".lz4": "lz4",
}
# Those of UTF-32 first, as the one of UTF-16 is how one of them begins.
_MARKS = {
  codecs.BOM_UTF8: "utf-8",
  codecs.BOM_UTF32_LE: "utf-32-le",
  codecs.BOM_UTF32_BE: "utf-32-be",
  codecs.BOM_UTF16_LE: "utf-16-le",
  codecs.BOM_UTF16_BE: "utf-16-be",
}
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)  # what libraries raise


@contextlib.contextmanager
def opened(path: Location) -> Iterator[IO[bytes]]:
  """Opens a file to read its bytes, without compression.

  Text in UTF-16 or UTF-32 with a byte order mark becomes UTF-8, as does text in UTF-16 without one
  that begins with ASCII; any mark is left out.

  Raises:
    ValueError: It is no regular file. While it is read: its compression is damaged; or, as
      UnicodeDecodeError, its text in UTF-16 or UTF-32 is.
  """
  with contextlib.ExitStack() as stack:
    raw = _buffered(stack.enter_context(locations.open_regular(path)))
    if kind := _compression(raw, path):
      raw = io.BufferedReader(_Changed(_decompressed(raw, kind, corpus_files.spelled(path))))
    head = raw.peek(_MAGIC)[:_MAGIC]
    mark = next((mark for mark in _MARKS if head.startswith(mark)), b"")
    raw.read(len(mark))
    encoding = _MARKS[mark] if mark else _without_mark(head)
    if encoding != "utf-8":
      raw = io.BufferedReader(_Changed(_recoded(raw, encoding)))
    yield raw


def _without_mark(head: bytes) -> str:
  """Returns the encoding of a text by its first bytes: every second one of ASCII in UTF-16 is 0."""
  first, second = head[0::2], head[1::2]
  if len(head) >= 4 and all(first) and not any(second):
    return "utf-16-le"
  if len(head) >= 4 and all(second) and not any(first):
    return "utf-16-be"
  return "utf-8"


def compression(path: Location) -> str:
  """Returns the compression of a file, one of the values of `ENDINGS`; empty text: none."""
  with locations.open_regular(path) as raw:
    return _compression(_buffered(raw), path)


def _compression(raw: io.BufferedReader, path: Location) -> str:
  """Returns what `compression` does, of a file that is open.

  Raises:
    ValueError: Its name says that it is, and it holds neither that nor text.
  """
  head = raw.peek(_MAGIC)
  found = next((kind for kind, magic in _COMPRESSED.items() if re.match(magic, head)), "")
  claimed = ENDINGS.get(path.suffix, "")
  if claimed and not found and not _is_text(head):
    shown = corpus_files.spelled(path)
    raise ValueError(f"{shown} is a damaged {claimed} file: it does not begin as one; replace it")
  return found


def _is_text(head: bytes) -> bool:
  """Returns whether the first bytes of a file look like text: UTF-8 without NUL, or a mark."""
  try:
    codecs.getincrementaldecoder("utf-8")().decode(head)
  except UnicodeDecodeError:
    return head.startswith(tuple(_MARKS))
  return b"\0" not in head


class _Changed(io.RawIOBase):
  """A stream of bytes from a function, which is called with the most bytes to return."""

  def __init__(self, read: Callable[[int], bytes]):
    self._read = read

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    """Puts the next bytes into a buffer; returns how many there were, 0 at the end."""
    some = self._read(len(buffer))
    buffer[: len(some)] = some
    return len(some)


def _buffered(raw: Any) -> io.BufferedReader:
  # Lines of files in object stores could not be bounded.
  return raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)


def _decompressed(raw: IO[bytes], kind: str, shown: str) -> Callable[[int], bytes]:
  """Returns a function that reads the decompressed bytes of a file."""
  source: Any
  match kind:
    case "gzip":
      source = gzip.GzipFile(fileobj=raw)
    case "bzip2":
      source = bz2.BZ2File(raw)
    case "xz":
      source = lzma.LZMAFile(raw)  # noqa: SIM115 (the caller closes what it reads from)
    case _:
      import pyarrow  # takes a fifth of a second

      source = pyarrow.CompressedInputStream(raw, kind)

  def read(size: int) -> bytes:
    try:
      return source.read(size)
    except _DAMAGED as error:
      why = " ".join(str(error).split())
      raise ValueError(f"{shown} is a damaged {kind} file: {why}; replace it") from None

  return read


def _recoded(raw: IO[bytes], encoding: str) -> Callable[[int], bytes]:
  """Returns a function that reads text of another encoding as UTF-8."""
  decoder = codecs.getincrementaldecoder(encoding)()

  def read(size: int) -> bytes:
    while some := raw.read(size // 2):  # a character takes at most 1.5 times as much as before
      if text := decoder.decode(some):
        return text.encode()
    return decoder.decode(b"", final=True).encode()

  return read
