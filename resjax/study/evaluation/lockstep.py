"""Work of process 0 in which all processes of a run have to take part."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from resjax.base import processes

T = TypeVar("T")

_numbers = itertools.count()  # of messages; every process sends or hears all of them in one order


class Lockstep:
  """Functions that process 0 calls and that the other processes then call with the same arguments.

  A program over the devices of several processes has to be started by all of them, while only one
  of them reads the tasks and knows what comes next.

  Args:
    functions: the functions by name; their arguments can be written as JSON.
  """

  def __init__(self, functions: Mapping[str, Callable[..., Any]]):
    self._functions = functions

  def call(self, name: str, *arguments: Any) -> Any:
    """Calls a function in all processes; for the work of `lead`, which runs in process 0."""
    if processes.active():
      _message((name, arguments))
    return self._functions[name](*arguments)

  def lead(self, work: Callable[[], T]) -> T | None:
    """Returns what `work` returns in process 0, and None in the others, which follow its calls.

    When the work ends with an error, the others leave, too.
    """
    if not processes.active():
      return work()
    if jax.process_index() == 0:
      try:
        return work()
      finally:
        _message(("", ()))
    while True:
      name, arguments = _message(None)
      if not name:
        return None
      self._functions[name](*arguments)


def _message(content: tuple[str, tuple[Any, ...]] | None) -> tuple[str, list[Any]]:
  """Returns the next message of process 0, which alone gives its content."""
  return processes.first(f"evaluation/{next(_numbers)}", lambda: content)
