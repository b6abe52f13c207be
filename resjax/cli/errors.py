"""What an error means to the user of a command, in one line, and the file with its traceback."""

import datetime
import lzma
import os
import shlex
import sys
import sysconfig
import tempfile
import traceback
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from absl import flags

from resjax.base import locations, processes, redaction
from resjax.cli import shipped

FILE_NAME = "error.log"
_LONGEST = 900  # characters of a line, of which JAX would fill pages
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError)
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
# Where files are that no user has written.
_LIBRARIES = (
  *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
  Path(__file__).parents[1],
  shipped.root() / "launch",
)


class Explained(NamedTuple):
  """An error in words.

  Attributes:
    line: the message.
    is_user_error: whether the message suffices, so that no traceback is needed.
  """

  line: str
  is_user_error: bool


def explain(error: Exception) -> Explained:
  """Returns an error in words for the user.

  ValueError, OSError and ImportError are the user's, as is too little memory. Where another process
  is gone, the line says so. Of an error that passed through a file of the user, such as a config or
  a combinator that is registered from outside, the line names file and line.
  """
  said = processes.explain(error)
  if said != str(error):
    return Explained(said, True)
  name = type(error).__name__
  if _is_out_of_memory(error):
    return Explained(f"out of memory ({_cut(said, 300) or name}); {_memory_flags()}", True)
  if isinstance(error, OSError) and error.filename and (way := locations.way_out(error)):
    return Explained(f"{said}; {way}", True)
  if isinstance(error, ValueError | OSError | ImportError):
    return Explained(said or name, True)
  if isinstance(error, _DAMAGED):
    return Explained(f"a compressed file is damaged or cut ({said or name})", False)
  why = f"{name}: {_cut(said, 300)}" if said else name
  if place := users_place(error):
    return Explained(f"{place}: {why}", False)
  return Explained(f"{why}; a bug in resjax or in a library; run again with --debug", False)


def users_place(error: BaseException, further: Iterable[tuple[str, int | None]] = ()) -> str | None:
  """Returns FILE:LINE of the last call in the user's files that an error passed through.

  Args:
    error: the error.
    further: file and line of calls after the traceback's.

  Returns:
    None if there is no such call.
  """
  frames = traceback.extract_tb(error.__traceback__)
  calls = [*((frame.filename, frame.lineno) for frame in frames), *further]
  own = [f"{file}:{line}" for file, line in calls if _is_users(file)]
  return own[-1] if own else None


def _is_users(file: str) -> bool:
  place = Path(file).resolve()
  installed = {"site-packages", "dist-packages"} & set(place.parts)
  return (
    place.is_file() and not installed and not any(place.is_relative_to(root) for root in _LIBRARIES)
  )


def one_line(text: str) -> str:
  """Returns a text as one line without secrets, whose control characters are spelled out."""
  line = " ".join(redaction.text(text).split())
  shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
  whole = "".join(shown)
  if len(whole) <= _LONGEST:
    return whole
  return f"{whole[:_LONGEST]}... ({len(whole) - _LONGEST:,} more characters; --debug prints them)"


def write_log(error: BaseException, folder: str | None) -> str | None:
  """Adds the traceback of an error to error.log, and returns its path; None if none can be written.

  Args:
    error: the error.
    folder: an existing local folder for the file; None: a new file in the folder for such files.
  """
  lines = "".join(traceback.format_exception(error))
  when = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
  command = shlex.join(redaction.words(sys.argv))
  content = f"{when}  {command}\n{redaction.text(lines)}\n".encode("utf-8", "backslashreplace")
  for number in (_in_folder, _new_file):
    try:
      opened, path = number(folder)
      with open(opened, "ab") as file:
        file.write(content)
      return path
    except (OSError, ValueError):
      continue
  return None


def _in_folder(folder: str | None) -> tuple[int, str]:
  if folder is None or not os.path.isdir(folder):
    raise FileNotFoundError
  path = os.path.join(folder, FILE_NAME)
  flags_ = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
  return os.open(path, flags_, 0o600), path


def _new_file(_folder: str | None) -> tuple[int, str]:
  return tempfile.mkstemp(prefix="resjax-error-", suffix=".log")


def _is_out_of_memory(error: Exception) -> bool:
  from_jax = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
  said = from_jax and any(words in str(error) for words in _OUT_OF_MEMORY)
  return isinstance(error, MemoryError) or said


def _memory_flags() -> str:
  """Returns which flags of this command make it need less memory."""
  if "config" in flags.FLAGS:
    return (
      "less is needed with more config.train.microbatches, a smaller config.train.batch_size, "
      "config.train.loss_chunk or config.data.seq_len, config.model.remat=full, or parameters that "
      "more devices share (config.mesh.fsdp); resjax aot tells what fits"
    )
  names = ("batch_size", "max_length", "seq_len", "tokens", "num_samples", "num_tokens", "shard_gb")
  found = [f"--{name}" for name in names if name in flags.FLAGS]
  return f"less is needed with a smaller {', '.join(found) or 'model'}"


def _cut(text: str, most: int) -> str:
  return text if len(text) <= most else f"{text[:most]}..."
