"""Every token is scored once, with the context that its convention gives it."""

import numpy as np
import pytest

from resjax.evaluation.windows import windows

L = 12


@pytest.mark.parametrize("stride", [1, L // 2, L - 1, L])
@pytest.mark.parametrize("length", [1, 2, L - 1, L, L + 1, 2 * L, 3 * L + 5])
def test_every_token_of_a_document_is_scored_once(length, stride):
  stream = np.arange(length + 1)  # 0 stands before the text
  scored, seen = [], []
  for row, first in windows(stream, L + 1, stride):
    np.testing.assert_array_equal(row, np.arange(row[0], row[0] + len(row)))
    assert 2 <= len(row) <= L + 1 and 1 <= first < len(row)
    scored += row[first:].tolist()
    seen += [int(token - row[0]) for token in row[first:]]
  assert scored == list(range(1, length + 1))
  least = [min(token, L - stride + 1) for token in scored]  # tokens before it
  assert all(have >= want for have, want in zip(seen, least, strict=True))


@pytest.mark.parametrize("length", [2, L, L + 1, L + 2, 3 * L + 5])
def test_windows_without_a_token_before_the_text(length):
  """Of disjoint windows the first token is not scored; with a stride that of the stream alone."""
  stream = np.arange(length)
  disjoint = [t for row, first in windows(stream, L, L) for t in row[first:].tolist()]
  assert disjoint == [token for token in range(length) if token % L]
  strided = [t for row, first in windows(stream, L, L // 2) for t in row[first:].tolist()]
  assert strided == list(range(1, length))


def test_streams_without_a_target():
  assert not list(windows(np.arange(1), 4, 2)) and not list(windows(np.arange(0), 4, 2))
