"""The first tokens of a text in batches, to measure a model on; nothing is written to disk."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator

import numpy as np
from absl import logging

from resjax.data import dataset, dropped, tokenizer_training
from resjax.data.batching import batched
from resjax.data.config import CorpusConfig, DataConfig, SettingNames
from resjax.data.packing import GIVEN, PADDING, START, split_rows
from resjax.data.pipeline import Batch
from resjax.data.sources import open_source
from resjax.data.special_tokens import Around
from resjax.data.tokenizer import Tokenizer

_KEYS = "inputs", "targets", "segment_ids", "positions"
_CHARACTERS = 1 << 18  # One call of the tokenizer gets documents up to this many characters.


@dataclasses.dataclass(frozen=True)
class MeasuredText:
  """A text in the batches that a model is given.

  Attributes:
    name: the name of the corpus.
    num_tokens: the number of targets in all batches.
    batches: dicts as `split_rows` returns them, with int32 arrays [B, T]; segment 0 is padding.
    prefix: says what stands in front of each document.
  """

  name: str
  num_tokens: int
  batches: tuple[Batch, ...]
  prefix: str = ""


def texts_of_source(corpus: CorpusConfig, settings: SettingNames) -> Iterator[str]:
  """Yields the documents of a source in its order, without those that hold no text.

  Of the first ones that are no UTF-8 it warns.

  Raises:
    ValueError: There are no documents, or none in the format asked for.
  """
  left_out = 0
  for document in open_source(settings, corpus).documents():
    if document.text is None:
      left_out += 1
      if left_out > dropped.SHOWN:
        continue
      logging.warning("%s: %s is no UTF-8 text and left out", settings.source, document.id)
    elif document.text.strip():
      yield document.text


def texts_of_dataset(config: DataConfig, fingerprint: str, split: str) -> Iterator[str] | None:
  """Returns the documents of a split in random but fixed order, with equal shares of bytes.

  The fingerprint names the built data; the result is None if they are not under `config.root`.

  Raises:
    ValueError: They exist, but are damaged.
  """
  records = dataset.find_texts(config.root, fingerprint, config.verify)
  return tokenizer_training.sample(records, sys.maxsize, split=split) if records else None


def measured_text(
  name: str,
  texts: Iterable[str],
  tokenizer: Tokenizer,
  *,
  seq_len: int,
  batch_size: int,
  max_tokens: int,
  around: Around | None = None,
) -> MeasuredText:
  """Returns the first tokens of some texts, packed into rows.

  Args:
    name: the name of the corpus.
    texts: the documents of the corpus.
    tokenizer: the tokenizer of the model.
    seq_len: T.
    batch_size: B; the last batch is filled up with padding.
    max_tokens: the number of targets after which the text ends.
    around: the tokens around each document, those in front also where it goes on in another row, in
      place of its last token in the row before; None: the stream of training is cut into rows.

  Raises:
    ValueError: There is no text, or it has less than two tokens.
  """
  if around is not None:
    return _apart(name, _encoded(texts, tokenizer), around, seq_len, batch_size, max_tokens)
  stream = _stream(name, texts, tokenizer, max_tokens)
  num_batches = -(-(len(stream) - 1) // (seq_len * batch_size))
  padded = np.full(num_batches * batch_size * seq_len + 1, PADDING, np.int32)
  padded[: len(stream)] = stream
  rows = np.lib.stride_tricks.sliding_window_view(padded, seq_len + 1)[::seq_len].copy()
  split = [split_rows(part) for part in np.split(rows, num_batches)]
  return MeasuredText(name, int(np.sum(stream[1:] & GIVEN == 0)), tuple(split))


def _stream(name: str, texts: Iterable[str], tokenizer: Tokenizer, max_tokens: int) -> np.ndarray:
  """Returns the stream of `packing.RowCutter` up to the target number `max_tokens`."""
  around = tokenizer.documents
  before, after = np.array(around.before, np.int32), np.array(around.after, np.int32)
  before[0] |= START
  before |= GIVEN if around.after else 0
  parts: list[np.ndarray] = []
  size = text_size = 0
  for document in _encoded(texts, tokenizer):
    parts += [before, document, after]
    size += int(np.sum(before & GIVEN == 0)) + len(document) + len(after)
    text_size += len(document)
    if size > max_tokens:
      break
  if text_size < 2:
    raise _too_short(name, text_size)
  stream = np.concatenate([*parts, before[: 0 if around.after else None]])
  targets = np.flatnonzero(stream[1:] & GIVEN == 0)
  return stream[: targets[:max_tokens][-1] + 2]


def _apart(
  name: str,
  documents: Iterable[np.ndarray],
  around: Around,
  seq_len: int,
  batch_size: int,
  max_tokens: int,
) -> MeasuredText:
  """Returns documents that nothing separates but their segments; see `measured_text`."""
  front = np.array(around.before, np.int32)
  # Behind a document stands its end, or as in training the beginning of the next one.
  after = np.array(around.after or around.before[:1], np.int32)
  rows: list[Batch] = []
  used, segment, left, text_size = seq_len, 0, max_tokens, 0
  for document in documents:
    text_size += len(document)
    rest = np.concatenate([front, document, after])
    while left and len(rest) > max(len(front), 1):
      if seq_len - used < max(len(front), 1):
        rows.append({key: np.zeros((1, seq_len), np.int32) for key in _KEYS})
        used = segment = 0
      size = min(seq_len - used, len(rest) - 1, left)
      place, segment = slice(used, used + size), segment + 1
      values = rest[:size], rest[1 : size + 1], segment, np.arange(size)
      for key, value in zip(_KEYS, values, strict=True):
        rows[-1][key][0, place] = value
      used, left = used + size, left - size
      rest = np.concatenate([front, rest[size + bool(len(front)) :]])
    if not left:
      break
  if text_size < 2 or not rows:
    raise _too_short(name, text_size)
  empty = {key: np.zeros((1, seq_len), np.int32) for key in _KEYS}
  rows += [empty] * (-len(rows) % batch_size)
  batches = (rows[i : i + batch_size] for i in range(0, len(rows), batch_size))
  joined = ({key: np.concatenate([row[key] for row in some]) for key in _KEYS} for some in batches)
  return MeasuredText(name, max_tokens - left, tuple(joined))


def _too_short(name: str, size: int) -> ValueError:
  found = "is one token of text" if size else "holds no text"
  return ValueError(f"{name} {found}; measuring needs two tokens or more: give a longer text")


def _encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
  for some in batched(texts, len, _CHARACTERS):
    yield from tokenizer.encode_batch(some)
