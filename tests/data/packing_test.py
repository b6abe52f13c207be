import numpy as np
import pytest

from resjax.base.typing import NOT_ASKED
from resjax.data.packing import GIVEN, PADDING, START, RowCutter, marked, numbers, split_rows
from resjax.data.special_tokens import Around

EOT = 9
SEPARATED = Around((EOT,))


def _documents(count, longest, seed=0):
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, longest + 1, count)
  return [rng.integers(0, EOT, n).astype(np.int32) for n in lengths]


def _pack(documents, seq_len, batch, around=SEPARATED):
  """Returns rows, their bytes and the cutter; token t stands for t bytes, and 1 is left behind."""
  cutter = RowCutter(seq_len, around)
  rows, sizes = [], []
  for i in range(0, len(documents), batch):
    some = documents[i : i + batch]
    rows.append(cutter.push(some, [np.append(document.astype(np.int64), 1) for document in some]))
    sizes.append(cutter.bytes)
  rows.append(cutter.finish())
  return np.concatenate(rows), np.concatenate([*sizes, cutter.bytes]), cutter


def _stream(documents):
  stream = [EOT]
  for document in documents:
    stream += [*document.tolist(), EOT]
  return stream


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize(("seq_len", "longest"), [(2, 9), (7, 3), (8, 40), (64, 5), (1000, 10)])
def test_rows_hold_the_stream_with_an_overlap_of_one(seq_len, longest, batch):
  documents = _documents(41, longest)
  marks, sizes, cutter = _pack(documents, seq_len, batch)
  rows, stream = numbers(marks), _stream(documents)
  np.testing.assert_array_equal(marks, marked(rows, EOT))  # as those of earlier releases are read
  assert cutter.num_tokens == len(stream)
  assert rows.dtype == np.int32 and rows.shape == (-(-(len(stream) - 1) // seq_len), seq_len + 1)
  for index, row in enumerate(rows):
    start = index * seq_len
    expected = stream[start : start + seq_len + 1]
    assert row.tolist() == expected + [PADDING] * (seq_len + 1 - len(expected))
  assert (rows[:-1] != PADDING).all() and rows[-1, 1] != PADDING
  # A token has its own bytes, and what separates documents what is left behind the one before.
  counted = np.where(rows == EOT, 1, np.where(rows == PADDING, 0, rows))[:, 1:]
  assert sizes.tolist() == counted.sum(axis=1).tolist()
  assert sizes.sum() == sum(document.sum() + 1 for document in documents)


def test_every_row_length_modulo_the_stream():
  for length in range(1, 20):
    documents = [np.arange(length, dtype=np.int32) % EOT]
    rows, _, _ = _pack(documents, 5, 1)
    targets = numbers(rows)[:, 1:].ravel()
    assert targets[targets != PADDING].tolist() == _stream(documents)[1:]


def test_documents_come_back_from_the_batches():
  documents = _documents(30, 25, seed=1)
  rows, _, _ = _pack(documents, 16, 4)
  batch = split_rows(rows)
  targets = batch["targets"][batch["segment_ids"] > 0]
  ends = np.flatnonzero(targets == EOT)
  pieces = np.split(targets, ends + 1)
  assert len(pieces[-1]) == 0
  for piece, document in zip(pieces[:-1], documents, strict=True):
    np.testing.assert_array_equal(piece[:-1], document)


def _reference(row):
  """Returns the segments and positions of one row, computed token by token."""
  segment, position, segments, positions = 1, 0, [], []
  for index, token in enumerate(row[:-1]):
    if token == EOT and index:
      segment, position = segment + 1, 0
    real = row[index + 1] != PADDING
    segments.append(segment if real else 0)
    positions.append(position if real else 0)
    position += 1
  return segments, positions


@pytest.mark.parametrize(("seq_len", "longest"), [(2, 5), (16, 6), (16, 50)])
def test_segments_and_positions(seq_len, longest):
  rows, _, _ = _pack(_documents(60, longest, seed=2), seq_len, 7)
  batch, rows = split_rows(rows), numbers(rows)
  for name in ("inputs", "targets", "segment_ids", "positions"):
    assert batch[name].shape == (len(rows), seq_len) and batch[name].dtype == np.int32
  for index, row in enumerate(rows):
    segments, positions = _reference(row)
    assert batch["segment_ids"][index].tolist() == segments
    assert batch["positions"][index].tolist() == positions
  valid = batch["segment_ids"] > 0
  assert batch["positions"].max() < seq_len
  np.testing.assert_array_equal(batch["inputs"][valid], rows[:, :-1][rows[:, 1:] != PADDING])
  for value in batch.values():
    assert not value[~valid].any()


def test_rows_of_padding_alone_weigh_nothing():
  batch = split_rows(np.full((2, 9), PADDING, np.int32))
  assert not any(value.any() for value in batch.values())


@pytest.mark.parametrize("seq_len", [2, 7, 64])
def test_a_token_before_and_one_behind_each_document(seq_len):
  documents = [np.array(d, np.int32) for d in ([1, 2], [3], [], [4, 8, 7, 5, 6])]  # 8 ends them
  rows, sizes, cutter = _pack(documents, seq_len, 3, Around((7,), (8,)))
  stream = [7, 1, 2, 8, 7, 3, 8, 7, 8, 7, 4, 8, 7, 5, 6, 8]
  starts = [0, 4, 7, 9]
  assert cutter.num_tokens == len(stream)
  joined = np.concatenate([rows[0, :1], rows[:, 1:].ravel()])[: len(stream)]
  assert numbers(joined).tolist() == stream
  assert np.flatnonzero(joined & START).tolist() == starts
  assert np.flatnonzero(joined & GIVEN).tolist() == starts
  batch = split_rows(rows)
  asked = (batch["segment_ids"] > 0) & (batch["targets"] != NOT_ASKED)
  want = [token for i, token in enumerate(stream) if i not in starts]
  assert batch["targets"][asked].tolist() == want
  assert sizes.sum() == sum(document.sum() + 1 for document in documents)
  if seq_len == 64:
    assert batch["positions"][0, :15].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 0, 1, 2, 3, 4, 5]
    assert batch["segment_ids"][0, :15].tolist() == [1] * 4 + [2] * 3 + [3] * 2 + [4] * 6
