"""Packing: documents become one stream of tokens, and the stream becomes rows of equal length."""

from collections.abc import Iterable

import numpy as np

PADDING = -1  # Fills the last row behind the end of the stream.


class RowCutter:
  """Cuts the stream `[eot] doc [eot] doc ... [eot]` into rows [T+1] that overlap by one token.

  With inputs = row[:-1] and targets = row[1:], every token but the first `eot` is a target
  exactly once, whatever the length of the documents; only the last row has padding. Documents
  keep their order here; rows are shuffled when they are read. T is seq_len, and eot is eot_id.
  """

  def __init__(self, seq_len: int, eot_id: int):
    self._seq_len, self._eot = seq_len, np.array([eot_id], np.int32)
    self._rest = np.zeros(0, np.int32)
    self.num_tokens = 0

  def push(self, documents: Iterable[np.ndarray]) -> np.ndarray:
    """Adds documents to the stream, and returns the rows [n, T+1] that they complete."""
    parts = [self._rest]
    for document in documents:
      parts += [self._eot, document]
      self.num_tokens += 1 + len(document)
    stream = np.concatenate(parts)
    count = max(len(stream) - 1, 0) // self._seq_len
    used = count * self._seq_len
    self._rest = stream[used:].copy()
    if not count:
      return np.zeros((0, self._seq_len + 1), np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(stream[: used + 1], self._seq_len + 1)
    return windows[:: self._seq_len]

  def finish(self) -> np.ndarray:
    """Closes the stream and returns the last rows [n, T+1], padded with `PADDING`."""
    rows = self.push([np.zeros(0, np.int32)])  # Adds the end of text that closes the stream.
    rest, self._rest = self._rest, self._rest[:0]
    if len(rest) < 2:  # Only the overlap is left, whose token has been a target.
      return rows
    padding = np.full(self._seq_len + 1 - len(rest), PADDING, np.int32)
    return np.concatenate([rows, np.concatenate([rest, padding])[None]])


def split_rows(tokens: np.ndarray, eot_id: int) -> dict[str, np.ndarray]:
  """Turns stored rows into inputs and targets, with the segments and positions of the inputs.

  A segment is a document, or the part of it in this row, and includes the end of text before it.
  The last token of a document has the next end of text as target. Positions count from the start
  of the segment, so they stay below T: a document cut by a row's end continues at position 0.

  Args:
    tokens: rows of `RowCutter` [B, T+1].
    eot_id: the token that starts a document.

  Returns:
    `inputs`, `targets`, `segment_ids` (1, 2, ... in each row; 0 marks padding, which has no weight
    in the loss) and `positions`, each int32 [B, T]. Padding is 0 in all four.
  """
  inputs, targets = tokens[:, :-1], tokens[:, 1:]
  valid = targets != PADDING
  starts = inputs == eot_id
  starts[:, 0] = True
  index = np.arange(inputs.shape[1], dtype=np.int32)
  batch = {
    "inputs": inputs,
    "targets": targets,
    "segment_ids": np.cumsum(starts, axis=1, dtype=np.int32),
    "positions": index - np.maximum.accumulate(np.where(starts, index, 0), axis=1),
  }
  return {name: np.where(valid, value, 0).astype(np.int32) for name, value in batch.items()}
