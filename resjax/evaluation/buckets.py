"""Buckets of rows by their length, so that few programs are compiled."""

from collections.abc import Callable, Iterator, Sequence

_SHORTEST = 64  # tokens in the rows of the first bucket; every further one has twice as many


def bucket_size(length: int, longest: int) -> int:
  """Returns the first of 64, 128, 256, ... that is not below `length`, but at most `longest`."""
  size = _SHORTEST
  while size < length:
    size *= 2
  return min(size, longest)


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
