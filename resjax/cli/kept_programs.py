"""Keeps compiled programs from one command to the next, in a folder of the user."""

import hashlib
import os
import platform
import sys
from collections.abc import MutableMapping
from pathlib import Path

_FOLDER, _SWITCH = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"
_LIMITS = {
  "JAX_COMPILATION_CACHE_MAX_SIZE": str(2**30),  # bytes; what was used longest ago goes first
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
}


def keep(environment: MutableMapping[str, str]) -> None:
  """Lets JAX keep compiled programs, unless somebody has said where, or whether, it does.

  JAX reads the variables when it is imported, and the processes of a command inherit them. The
  first command that keeps programs says so on the standard error. Nothing is kept where no folder
  can be written.

  Args:
    environment: the variables of this process.
  """
  if _FOLDER in environment or _SWITCH in environment:
    return
  try:
    caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "resjax" / f"programs-{_machine()}"
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
  except (OSError, RuntimeError):  # not writable, no space, no home
    return
  if not os.access(folder, os.W_OK):
    return
  environment[_FOLDER] = str(folder)
  for name, limit in _LIMITS.items():
    environment.setdefault(name, limit)
  if new:
    told = f"keeping compiled programs in {folder}, at most 1 GiB; {_SWITCH}=0 keeps none"
    print(told, file=sys.stderr)


def _machine() -> str:
  """Returns a name of this kind of processor: programs for another one may not run here."""
  try:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    lines = []
  kind = [line for line in lines if line.startswith(("model name", "flags", "Features"))][:2]
  return hashlib.sha256("\n".join([platform.machine(), *kind]).encode()).hexdigest()[:8]
