"""Buckets hold their rows, are few, and waste little."""

import pytest

from resjax.study.evaluation.buckets import batches, coarse_sizes, fine_sizes, fitting


@pytest.mark.parametrize("longest", [1, 16, 64, 96, 200, 1000, 1024, 2048, 3000, 4096, 50_000])
def test_buckets_are_few_and_hold_their_rows(longest):
  lengths = range(1, longest + 1)
  for sizes, most in ((fine_sizes(longest), 8), (coarse_sizes(longest), 6)):
    assert list(sizes) == sorted(set(sizes)) and len(sizes) <= most and sizes[-1] == longest
    assert all(fitting(length, sizes) >= length for length in lengths)
  if longest >= 512:
    held = sum(fitting(length, fine_sizes(longest)) for length in lengths)
    assert sum(lengths) > 0.8 * held


def test_the_buckets_of_some_lengths():
  assert fine_sizes(40) == (40,) and fine_sizes(96) == (64, 96) == coarse_sizes(96)
  assert fine_sizes(200) == (64, 96, 128, 192, 200)
  assert fine_sizes(1024) == (64, 128, 256, 384, 512, 768, 1024)
  assert fine_sizes(3000) == (128, 256, 512, 1024, 1536, 2048, 3000)
  assert coarse_sizes(8192) == (256, 512, 1024, 2048, 4096, 8192)


def test_batches_hold_every_row_once_the_longest_first():
  sizes = [64, 128, 64, 64, 128, 256]
  found = list(batches(sizes, lambda size: 256 // size))
  assert found == [([5], 256), ([1, 4], 128), ([0, 2, 3], 64)]
  assert list(batches(sizes, lambda _: 2))[1:] == [([1, 4], 128), ([0, 2], 64), ([3], 64)]
