"""Every token is scored once, with the context that its convention gives it."""

import numpy as np
import pytest

from resjax.study.evaluation.windows import windows

L = 12


@pytest.mark.parametrize("full_last", [False, True])
@pytest.mark.parametrize("stride", [1, L // 2, L - 1, L])
@pytest.mark.parametrize("length", [1, 2, L - 1, L, L + 1, 2 * L, 3 * L + 5])
def test_every_token_of_a_document_is_scored_once(length, stride, full_last):
  stream = np.arange(length + 1)  # 0 stands before the text
  scored, seen = [], []
  for row, first in windows(stream, L + 1, stride, full_last=full_last):
    np.testing.assert_array_equal(row, np.arange(row[0], row[0] + len(row)))
    assert 2 <= len(row) <= L + 1 and 1 <= first < len(row)
    scored += row[first:].tolist()
    seen += [int(token - row[0]) for token in row[first:]]
  assert scored == list(range(1, length + 1))
  least = [min(token, L - stride + 1) for token in scored]  # tokens before it
  assert all(have >= want for have, want in zip(seen, least, strict=True))
  if full_last:  # tokens before the last one, as many as fit
    assert seen[-1] == min(length, L)


@pytest.mark.parametrize("length", [2, L, L + 1, L + 2, 3 * L + 5])
def test_windows_without_a_token_before_the_text(length):
  """Of disjoint windows the first token is not scored; with a stride that of the stream alone."""
  stream = np.arange(length)
  found = windows(stream, L, L, full_last=False)
  disjoint = [t for row, first in found for t in row[first:].tolist()]
  assert disjoint == [token for token in range(length) if token % L]
  found = windows(stream, L, L // 2, full_last=False)
  strided = [t for row, first in found for t in row[first:].tolist()]
  assert strided == list(range(1, length))


def test_streams_without_a_target():
  for length in (0, 1):
    assert not list(windows(np.arange(length), 4, 2, full_last=True))


@pytest.mark.parametrize("length", [1, L - 1, L, L + 1, 3 * L + 5])
def test_windows_of_documents_are_those_of_the_harness(length):
  utils = pytest.importorskip("lm_eval.utils")
  tokens = list(range(1, length + 1))
  theirs = map(utils.make_disjoint_window, utils.get_rolling_token_windows(tokens, 0, L, 1))
  ours = windows(np.arange(length + 1), L + 1, L, full_last=True)
  for (context, scored), (row, first) in zip(theirs, ours, strict=True):
    assert (row[:first].tolist(), row[first:].tolist()) == (list(context), list(scored))
