"""The first tokens of a text in batches, to measure a model on; nothing is written to disk."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator

import numpy as np
from absl import logging

from resjax.data import dataset, dropped, tokenizer_training
from resjax.data.batching import batched
from resjax.data.config import CorpusConfig, DataConfig, SettingNames
from resjax.data.packing import PADDING, split_rows
from resjax.data.pipeline import Batch
from resjax.data.sources import open_source
from resjax.data.tokenizer import Tokenizer

_CHARACTERS = 1 << 18  # One call of the tokenizer gets documents up to this many characters.


@dataclasses.dataclass(frozen=True)
class MeasuredText:
  """A text in the batches that a model is given.

  Attributes:
    name: the name of the corpus.
    num_tokens: the number of targets in all batches.
    batches: dicts as `split_rows` returns them, with int32 arrays [B, T]; segment 0 is padding.
  """

  name: str
  num_tokens: int
  batches: tuple[Batch, ...]


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
    ValueError: They are there, but damaged.
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
  start_rows: bool = False,
) -> MeasuredText:
  """Returns the first tokens of some texts, packed into rows as in training.

  Args:
    name: the name of the corpus.
    texts: the documents of the corpus.
    tokenizer: the tokenizer of the model.
    seq_len: T.
    batch_size: B; the last batch is filled up with padding.
    max_tokens: the number of targets after which the text ends.
    start_rows: whether the first token of every row is replaced by the one that starts documents,
      also where a document continues. The targets stay the same.

  Raises:
    ValueError: There is no text, or it has less than two tokens.
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
  """Returns the stream [eot] doc [eot] doc ... [eot], or its first max_tokens + 1 tokens."""
  eot = np.array([tokenizer.eot_id], np.int32)
  parts: list[np.ndarray] = []
  size = text_size = 0
  for document in _encoded(texts, tokenizer):
    parts += [eot, document]
    size += 1 + len(document)
    text_size += len(document)
    if size > max_tokens:
      break
  if text_size < 2:
    found = "holds no text" if not parts else "is one token of text"
    raise ValueError(f"{name} {found}; measuring needs two tokens or more: give a longer text")
  return np.concatenate([*parts, eot])[: max_tokens + 1]


def _encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
  for some in batched(texts, len, _CHARACTERS):
    yield from tokenizer.encode_batch(some)
