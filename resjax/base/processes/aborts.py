"""What JAX's coordination service does when it loses a process: it says so, instead of aborting.

By default its client aborts the process with the stacks of all C++ and Python threads.
"""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

from jax._src import distributed as runtime

_BAD_CAST = b"St8bad_cast"  # as libstdc++ names it
_TERMINATE = ctypes.CFUNCTYPE(None)

_handlers: list[Any] = []  # C++ calls them as long as the process lives


@contextlib.contextmanager
def explained(lost: Callable[..., None]) -> Iterator[None]:
  """Lets the client that JAX makes in this context call a function when it has lost the others.

  Args:
    lost: ends the process.
  """
  library, make = runtime._jax, runtime._jax.get_distributed_runtime_client
  _end_after_bad_casts(lost)
  library.get_distributed_runtime_client = functools.partial(make, missed_heartbeat_callback=lost)
  try:
    yield
  finally:
    library.get_distributed_runtime_client = make


def _end_after_bad_casts(lost: Callable[..., None]) -> None:
  """Lets C++ call a function where it gives up on a conversion of types.

  Up to jaxlib 0.10.2 the client calls no function of Python: it cannot convert the status that it
  would hand over, and throws std::bad_cast, which nothing catches.
  """
  try:
    cpp = ctypes.CDLL("libstdc++.so.6")
    set_handler = cpp._ZSt13set_terminatePFvvE
    thrown = cpp.__cxa_current_exception_type
  except (OSError, AttributeError):  # another C++ library, and JAX aborts as ever
    return
  set_handler.restype, set_handler.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
  thrown.restype = ctypes.c_void_p

  def terminate() -> None:
    kind = thrown()
    # The second word of std::type_info is the name of the type.
    name = (
      ctypes.c_char_p.from_address(kind + ctypes.sizeof(ctypes.c_void_p)).value if kind else b""
    )
    if name == _BAD_CAST:
      lost()
    _TERMINATE(before)()

  handler = _TERMINATE(terminate)
  _handlers.append(handler)
  before = set_handler(ctypes.cast(handler, ctypes.c_void_p))
