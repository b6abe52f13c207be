"""Lists of texts, or of what else has a size, that are large enough to be worked on at once."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batched(
  items: Iterable[T], size: Callable[[T], int], enough: int, most: int = sys.maxsize
) -> Iterator[list[T]]:
  """Yields all items in order, in lists that end as soon as they are large enough.

  Args:
    items: what to put into lists.
    size: gives the size of an item.
    enough: the sum of sizes with which a list ends.
    most: the number of items with which a list ends, whatever their sizes are.
  """
  some: list[T] = []
  total = 0
  for item in items:
    some.append(item)
    total += size(item)
    if total >= enough or len(some) >= most:
      yield some
      some, total = [], 0
  if some:
    yield some
