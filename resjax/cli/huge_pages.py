"""Has the memory of a command's arrays in huge pages, where Linux gives them to who asks."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_VARIABLE, _HUGE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
_SYSTEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def ask(words: Sequence[str]) -> None:
  """Starts this process again with the setting of glibc that asks for huge pages.

  On CPUs XLA allocates what a program needs anew for every call. What is large glibc takes from the
  system and gives back each time, and the system clears its pages one by one: of 2 MiB they are 512
  times fewer than of 4 KiB. To keep freed memory (`mallopt`) would cost several times the memory:
  before its release 2.38 glibc does not join again what it has cut to be aligned.

  glibc reads the setting when a process starts, so this is done before anything else is. Nothing is
  done where the variable is set, where the C library does not know the setting, where all processes
  or none have huge pages, and where the words are not those that the process was started with.

  Args:
    words: the name of the command and its words.
  """
  if (
    _VARIABLE not in os.environ
    and _is_known()
    and sys.orig_argv[-len(words) :] == list(words)
    and _only_asked()
  ):
    os.environ[_VARIABLE] = _HUGE
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _is_known() -> bool:
  """Returns whether the C library is a glibc that has the setting, 2.35 or later."""
  name = "CS_GNU_LIBC_VERSION"
  version = os.confstr(name) if name in os.confstr_names else None
  found = re.match(r"glibc (\d+)\.(\d+)", version or "")
  return found is not None and (int(found[1]), int(found[2])) >= (2, 35)


def _only_asked() -> bool:
  """Returns whether Linux gives huge pages to those who ask, and to nobody else."""
  try:
    return "[madvise]" in _SYSTEM.read_text()
  except OSError:
    return False
