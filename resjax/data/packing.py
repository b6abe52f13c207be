"""Packing: documents become one stream of tokens, and the stream becomes rows of equal length.

A stored token is its number, with two marks above it: `START` on the first token of a document, and
`GIVEN` on one that is no target, since what stands before a document follows from the end of the
one before. A document may hold the same tokens without the marks. Rows of earlier releases have
none: there each `eot_id` starts a document.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from resjax.base import NOT_ASKED
from resjax.data.special_tokens import Around

PADDING = -1  # Fills the last row behind the end of the stream.
START, GIVEN = 1 << 24, 1 << 25  # Vocabularies have at most 2 ** 24 tokens.
_NUMBER = ~(START | GIVEN)
_NONE = np.zeros(0, np.int64)  # where bytes are not counted


class RowCutter:
  """Cuts a stream of documents into rows [T+1] that overlap by one token.

  With `around` = ((bos,), (eos,)) the stream is `bos doc eos bos doc eos ...`; with ((eos,), ())
  one token separates documents, `eos doc eos doc ... eos`. With inputs = row[:-1] and targets =
  row[1:], every token but the first of the stream is a target exactly once, whatever the length of
  the documents, unless it has the mark `GIVEN`; only the last row has padding. The bytes of a row
  are the bytes of its targets, so that they add up to the bytes of all documents. Documents
  keep their order here; rows are shuffled when they are read.

  Args:
    seq_len: T.
    around: the tokens before and behind every document, of which some stand before it; or the one
      that separates documents.

  Attributes:
    num_tokens: the number of tokens of the stream.
    bytes: the bytes [n] of the rows that were returned last.
  """

  def __init__(self, seq_len: int, around: Around | int):
    self._seq_len, self.bytes = seq_len, np.zeros(0, np.int64)
    around = Around((around,)) if isinstance(around, int) else around
    self._closes = not around.after  # by what separates documents
    before, self._after = np.array(around.before, np.int32), np.array(around.after, np.int32)
    before[0] |= START
    self._before = before | (0 if self._closes else GIVEN)
    self._rest, self._rest_bytes = np.zeros(0, np.int32), np.zeros(0, np.int64)
    self._left = 0  # bytes behind the tokens of the last document
    self.num_tokens = 0

  def push(
    self, documents: Iterable[np.ndarray], sizes: Iterable[np.ndarray] = itertools.repeat(_NONE)
  ) -> np.ndarray:
    """Adds documents to the stream, and returns the rows [n, T+1] that they complete.

    Args:
      documents: the tokens [n] of each document.
      sizes: the bytes [n + 1] of text that each token stands for. The last number is for text
        behind the last token; it is counted at the token behind the document. Default: not counted.
    """
    parts, counts = [self._rest], [self._rest_bytes]
    for tokens, size in zip(documents, sizes, strict=False):
      bytes_of = size if len(size) else np.zeros(len(tokens) + 1, np.int64)
      self._add(parts, counts, self._before)
      parts.append(tokens)
      counts.append(bytes_of[:-1])
      self._left += int(bytes_of[-1])
      self._add(parts, counts, self._after)
      self.num_tokens += len(self._before) + len(tokens) + len(self._after)
    return self._cut(np.concatenate(parts), np.concatenate(counts))

  def _add(self, parts: list[np.ndarray], counts: list[np.ndarray], tokens: np.ndarray) -> None:
    """Adds tokens around a document; its leftover bytes count at the first that is a target."""
    size = np.zeros(len(tokens), np.int64)
    if len(tokens) and not tokens[0] & GIVEN:
      size[0], self._left = self._left, 0
    parts.append(tokens)
    counts.append(size)

  def _cut(self, stream: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    count = max(len(stream) - 1, 0) // self._seq_len
    used = count * self._seq_len
    self._rest, self._rest_bytes = stream[used:].copy(), sizes[used:].copy()
    if not count:
      self.bytes = np.zeros(0, np.int64)
      return np.zeros((0, self._seq_len + 1), np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(stream[: used + 1], self._seq_len + 1)
    self.bytes = sizes[1 : used + 1].reshape(count, -1).sum(axis=1)
    return windows[:: self._seq_len]

  def finish(self) -> np.ndarray:
    """Closes the stream and returns the last rows [n, T+1], padded with `PADDING`."""
    parts, counts = [self._rest], [self._rest_bytes]
    if self._closes:
      self._add(parts, counts, self._before)
      self.num_tokens += len(self._before)
    rows = self._cut(np.concatenate(parts), np.concatenate(counts))
    rest, self._rest = self._rest, self._rest[:0]
    if len(rest) < 2:  # Only the overlap is left, whose token has been a target.
      return rows
    padding = np.full(self._seq_len + 1 - len(rest), PADDING, np.int32)
    self.bytes = np.append(self.bytes, self._rest_bytes[1:].sum())
    return np.concatenate([rows, np.concatenate([rest, padding])[None]])


def numbers(tokens: np.ndarray) -> np.ndarray:
  """Returns the numbers of stored tokens; `PADDING` stays."""
  return np.where(tokens == PADDING, PADDING, tokens & _NUMBER)


def marked(tokens: np.ndarray, eot_id: int) -> np.ndarray:
  """Returns rows of an earlier release with marks: each `eot_id` starts a document."""
  return np.where(tokens == eot_id, tokens | START, tokens)


def split_rows(tokens: np.ndarray, eot_id: int | None = None) -> dict[str, np.ndarray]:
  """Turns stored rows into inputs and targets, with the segments and positions of the inputs.

  A segment is a document, or the part of it in this row, and includes what stands before it. The
  last token of a document has as target what stands behind it, or else before the next one.
  Positions count from the start of the segment, so they stay below T: a document cut by a row's end
  continues at position 0.

  Args:
    tokens: rows of `RowCutter` [B, T+1].
    eot_id: starts a document although it has no mark, as in rows of earlier releases.

  Returns:
    `inputs`, `targets`, `segment_ids` (1, 2, ... in each row; 0 marks padding, which has no weight
    in the loss) and `positions`, each int32 [B, T]. Padding is 0 in all four. Targets are
    `NOT_ASKED` where the next token has the mark `GIVEN`.
  """
  tokens = tokens if eot_id is None else marked(tokens, eot_id)
  valid = tokens[:, 1:] != PADDING
  starts = tokens[:, :-1] & START != 0
  starts[:, 0] = True
  index = np.arange(starts.shape[1], dtype=np.int32)
  batch = {
    "inputs": tokens[:, :-1] & _NUMBER,
    "targets": np.where(tokens[:, 1:] & GIVEN != 0, NOT_ASKED, tokens[:, 1:] & _NUMBER),
    "segment_ids": np.cumsum(starts, axis=1, dtype=np.int32),
    "positions": index - np.maximum.accumulate(np.where(starts, index, 0), axis=1),
  }
  return {name: np.where(valid, value, 0).astype(np.int32) for name, value in batch.items()}
