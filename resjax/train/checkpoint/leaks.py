"""What keeps the memory of a run that saves often from growing."""

import ctypes
import functools
from collections.abc import Callable

from orbax.checkpoint._src.serialization import tensorstore_utils


def stop_counting_bytes() -> None:
  """Makes Orbax log no raw throughput.

  For that line it asks TensorStore for metrics, twice a save. TensorStore 0.1.86 never frees the
  lists of its answers: 50 KB a save, which `python -m tests.soak` shows. Neither has a setting.
  """
  tensorstore_utils.get_tensorstore_raw_bytes = lambda direction=None: 0


def give_back_freed_memory() -> None:
  """Returns freed memory to the system, where the allocator is glibc's.

  The threads that write checkpoints have heaps of their own, which glibc does not shrink: the
  process would grow by 45 KB a save.
  """
  trim = _malloc_trim()
  if trim is not None:
    trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
  return getattr(ctypes.CDLL(None), "malloc_trim", None)
