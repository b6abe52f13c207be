"""Keeps compiled programs from one command to the next, in a folder of the user."""

import contextlib
import hashlib
import os
import platform
import sys
from collections.abc import MutableMapping
from pathlib import Path

_FOLDER, _SWITCH = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"
_ON = ("y", "yes", "t", "true", "on", "1")  # as JAX reads its variables
_MOST = 2**30  # bytes


def keep(environment: MutableMapping[str, str]) -> None:
  """Lets JAX keep compiled programs, unless somebody has said where, or whether, it does.

  JAX reads the variables when it is imported, and the processes of a command inherit them. The
  first command that keeps programs says so on the standard error. Nothing is kept where no folder
  can be written. JAX would keep the folder small with files of times and a lock, and keep nothing
  more once one of them is lost; so it is done here.

  Args:
    environment: the variables of this process.
  """
  if _FOLDER in environment or environment.get(_SWITCH, "1").lower() not in _ON:
    return
  try:
    caches = Path(environment.get("XDG_CACHE_HOME", ""))
    if not caches.is_absolute():
      caches = Path.home() / ".cache"
    folder = caches / "resjax" / f"programs-{_machine()}"
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
  except (OSError, RuntimeError):  # not writable, no space, no home
    return
  if not os.access(folder, os.W_OK):
    return
  environment[_FOLDER] = str(folder)
  environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
  with contextlib.suppress(OSError):  # nobody reads, or somebody else has removed a file
    if new:
      told = f"compiled programs are kept; with {_SWITCH}=0 they are not:\n  {folder}"
      print(told, file=sys.stderr, flush=True)
    _drop_oldest(folder)


def _drop_oldest(folder: Path) -> None:
  """Removes what was read longest ago, until the rest has at most `_MOST` bytes."""
  files = [(file.stat(), file) for file in folder.rglob("*") if file.is_file()]
  total = sum(facts.st_size for facts, _ in files)
  for facts, file in sorted(files, key=lambda found: max(found[0].st_atime, found[0].st_mtime)):
    if total <= _MOST:
      return
    file.unlink()
    total -= facts.st_size


def _machine() -> str:
  """Returns a name of this kind of processor: programs for another one may not run here."""
  try:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    lines = []
  kind = [line for line in lines if line.startswith(("model name", "flags", "Features"))][:2]
  return hashlib.sha256("\n".join([platform.machine(), *kind]).encode()).hexdigest()[:8]
