"""The first tokens of some text in batches, to measure a model on; nothing is built or kept."""

import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np

from resjax.data import dataset, vocabulary
from resjax.data.config import CorpusConfig, DataConfig, Knobs
from resjax.data.packing import PADDING, split_rows
from resjax.data.pipeline import Batch
from resjax.data.sources import open_source
from resjax.data.tokenizer import Tokenizer

_CHARACTERS = 1 << 18  # tokenized at once, and the rest of the last document


@dataclasses.dataclass(frozen=True)
class MeasuredText:
  """Text as a model is given it.

  Attributes:
    name: of the corpus.
    num_tokens: targets, of all batches.
    batches: dicts of `split_rows`, [B, T] int32 each, all of one shape; segment 0 is padding.
  """

  name: str
  num_tokens: int
  batches: tuple[Batch, ...]


def texts_of_source(corpus: CorpusConfig, knobs: Knobs) -> Iterator[str]:
  """Yields the documents of a source in its order, without those that hold no text.

  Args:
    corpus: where they are.
    knobs: what its settings are called.

  Raises:
    ValueError: there are none, or not in the format asked for.
  """
  for document in open_source(knobs, corpus).documents():
    if document.text and document.text.strip():
      yield document.text


def texts_of_dataset(config: DataConfig, fingerprint: str, split: str) -> Iterator[str] | None:
  """Returns the documents of a built split in random but fixed order, as many bytes of each corpus.

  Args:
    config: of the data.
    fingerprint: of what was built.
    split: `train`, `validation` or `test`.

  Returns:
    The texts; None where what was built is not under `config.root`.
  """
  summary = dataset.find(config.root, fingerprint)
  records = dataset.fetch_texts(config.root, summary) if summary else None
  return vocabulary.sample(records, math.inf, split=split) if records else None


def measured_text(
  name: str,
  texts: Iterable[str],
  tokenizer: Tokenizer,
  *,
  seq_len: int,
  batch_size: int,
  max_tokens: int,
  start_rows: bool = False,
) -> MeasuredText:
  """Returns the first tokens of some texts, packed into rows as in training.

  Args:
    name: of the corpus.
    texts: its documents.
    tokenizer: of the model.
    seq_len: T.
    batch_size: B; the last batch is filled up with padding.
    max_tokens: after so many targets the text ends.
    start_rows: whether the first token of every row is the one that starts documents, also where a
      document goes on. The targets are the same.

  Raises:
    ValueError: no text, or less than two tokens of it.
  """
  stream = _stream(name, texts, tokenizer, max_tokens)
  num_tokens = len(stream) - 1
  num_batches = -(-num_tokens // (seq_len * batch_size))
  padded = np.full(num_batches * batch_size * seq_len + 1, PADDING, np.int32)
  padded[: len(stream)] = stream
  rows = np.lib.stride_tricks.sliding_window_view(padded, seq_len + 1)[::seq_len].copy()
  if start_rows:
    rows[:, 0] = tokenizer.eot_id
  split = [split_rows(part, tokenizer.eot_id) for part in np.split(rows, num_batches)]
  return MeasuredText(name, num_tokens, tuple(split))


def _stream(name: str, texts: Iterable[str], tokenizer: Tokenizer, max_tokens: int) -> np.ndarray:
  """Returns [eot] doc [eot] doc ... [eot], or its first max_tokens + 1 tokens."""
  eot = np.array([tokenizer.eot_id], np.int32)
  parts, size, of_text = [], 0, 0
  for document in _encoded(texts, tokenizer):
    parts += [eot, document]
    size += 1 + len(document)
    of_text += len(document)
    if size > max_tokens:
      break
  if of_text < 2:
    found = "holds no text" if not parts else "is one token of text"
    raise ValueError(f"{name} {found}; measuring needs two tokens or more: give a longer text")
  return np.concatenate([*parts, eot])[: max_tokens + 1]


def _encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
  some, size = [], 0
  for text in texts:
    some.append(text)
    size += len(text)
    if size >= _CHARACTERS:
      yield from tokenizer.encode_batch(some)
      some, size = [], 0
  yield from tokenizer.encode_batch(some)
