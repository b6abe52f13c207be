"""Cuts token streams into windows, such that every token is scored once."""

from collections.abc import Iterator

import numpy as np


def windows(
  stream: np.ndarray, width: int, stride: int, *, full_last: bool
) -> Iterator[tuple[np.ndarray, int]]:
  """Yields windows of a stream, and the index in each of the first token that is scored there.

  Window k is stream[k S : k S + W]. It scores its last S tokens, and the first window all of its
  own but the first, which has no context. With a token put before a text, W = L + 1 and S = L, each
  window has L inputs and disjoint targets; with S < L a target has L - S + 1 or more inputs before
  it, unless it is near the beginning. With W = L and S = L the first token of every window has no
  context, and is not scored.

  Args:
    stream: tokens [n].
    width: W, the most tokens of a window, at least 2.
    stride: S, from 1 to W.
    full_last: whether the last window is stream[-W :], so that its targets, fewer than S, have the
      more context (lm-evaluation-harness, also where windows are disjoint), or ends early.
  """
  context = max(width - stride, 1)
  if len(stream) > 1:
    yield stream[:width], 1
  for start in range(stride, len(stream) - context, stride):
    begin = min(start, len(stream) - width) if full_last else start
    yield stream[begin : start + width], context + start - begin
