"""Buckets of rows by their length, so that few programs are compiled."""

from collections.abc import Callable, Iterator, Sequence

_SHORTEST = 64  # tokens in the rows of the first bucket, unless rows are very long
_POWERS = 6  # how many powers of two there are, the last of which holds the longest rows


def coarse_sizes(longest: int) -> tuple[int, ...]:
  """Returns the lengths of the rows of all buckets: powers of two, and the longest length last."""
  top = _SHORTEST
  while top < longest:
    top *= 2
  powers = [top >> k for k in range(_POWERS)]
  return tuple(sorted({min(size, longest) for size in powers if size >= _SHORTEST}))


def fine_sizes(longest: int) -> tuple[int, ...]:
  """Returns `coarse_sizes`, and two more: those halfway between the last three powers of two.

  Most tokens of most tasks stand in long rows, where padding costs most.
  """
  powers = coarse_sizes(longest)
  top = 2 * powers[-2] if len(powers) > 1 else 0
  halfway = {size for size in (3 * top // 4, 3 * top // 8) if _SHORTEST <= size < longest}
  return tuple(sorted({*powers, *halfway}))


def fitting(length: int, sizes: Sequence[int]) -> int:
  """Returns the first of some ascending sizes that is not below a length."""
  return next(size for size in sizes if size >= length)


def batches(sizes: Sequence[int], rows_of: Callable[[int], int]) -> Iterator[tuple[list[int], int]]:
  """Yields the numbers of the rows of each batch, and the size of their bucket.

  The largest buckets come first: what does not fit into memory fails at once.

  Args:
    sizes: the size of the bucket of each row.
    rows_of: returns how many rows of a bucket run at a time, given its size.
  """
  for size in sorted(set(sizes), reverse=True):
    numbers, count = [n for n, own in enumerate(sizes) if own == size], rows_of(size)
    for start in range(0, len(numbers), count):
      yield numbers[start : start + count], size
