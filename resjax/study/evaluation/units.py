"""Documents and streams as rows of tokens, with the units in which their loss is reported."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from resjax.data import Tokenizer, batched, corpus_files, start_token, token_files
from resjax.study.evaluation.conventions import LAST_WORD, STREAM, TOKENS
from resjax.study.evaluation.corpora import Corpus, Text
from resjax.study.evaluation.scorer import Scored
from resjax.study.evaluation.wikitext import count_words
from resjax.study.evaluation.windows import windows

_CHARACTERS = 1 << 18  # one call of the tokenizer gets documents up to this many characters
_MOST_STREAM = 1 << 28  # characters of a text that is one stream
_MOST_TOKENS = {"llmc": 10_485_760 + 1, "nanogpt": 1 << 28}  # of a file


@dataclasses.dataclass(frozen=True)
class Unit:
  """What is drawn as a whole when errors are estimated: a document, or a window of a stream.

  Attributes:
    id: its name.
    rows: its rows of tokens; all tokens that they score are its own.
    bytes: the UTF-8 bytes that count.
    words: the words that count; 0: words are not counted.
    merged: whether the end of the context and the target are one token, which is scored.
    lossy: whether the tokens spell fewer bytes than the text has; what is lost costs no bits.
  """

  id: str
  rows: Sequence[Scored]
  bytes: int
  words: int
  merged: bool = False
  lossy: bool = False


@dataclasses.dataclass(frozen=True)
class Cut:
  """How texts become rows.

  Attributes:
    max_length: L, the most inputs of a row.
    stride: S, by how many tokens windows advance, from 1 to L.
    front: the tokens in front of contexts and streams.
  """

  max_length: int
  stride: int
  front: tuple[int, ...] = ()


def units(corpus: Corpus, texts: Iterable[Text], tokenizer: Tokenizer, cut: Cut) -> Iterator[Unit]:
  """Yields the units of a corpus in order.

  Args:
    corpus: says by which convention.
    texts: its documents; not looked at where the corpus is a file of tokens.
    tokenizer: the tokenizer of the model.
    cut: the windows.

  Raises:
    ValueError: the text does not fit the convention or the tokenizer.
  """
  kind = corpus.rule.kind
  if kind == TOKENS:
    tokens = _tokens(corpus, tokenizer)
    sizes = tokenizer.token_bytes().astype(np.int64)[tokens]
    yield from _stream_units(tokens, sizes, cut.max_length + 1, cut.stride)
  elif kind == STREAM:
    (text,) = texts
    if len(text.given) > _MOST_STREAM:
      raise ValueError(
        f"--text={corpus.name} is one stream of {len(text.given):,} characters; allowed: "
        f"{_MOST_STREAM:,}"
      )
    [(tokens, sizes)] = tokenizer.encode_with_bytes([text.given])
    sizes = np.append(np.zeros(len(cut.front), np.int64), sizes[:-1])
    yield from _stream_units(_behind(cut.front, tokens), sizes, cut.max_length, cut.stride)
  elif kind == LAST_WORD:
    for batch in _batches(texts):
      yield from _last_words(batch, tokenizer, cut)
  else:
    sizes = tokenizer.token_bytes().astype(np.int64)
    for batch in _batches(texts):
      yield from _documents(batch, tokenizer, cut, sizes)


def _documents(
  texts: Sequence[Text], tokenizer: Tokenizer, cut: Cut, sizes: np.ndarray
) -> Iterator[Unit]:
  encoded = tokenizer.encode_batch([text.given for text in texts])
  for text, tokens in zip(texts, encoded, strict=True):
    stream = _behind((start_token(tokenizer),), tokens)
    found = windows(stream, cut.max_length + 1, cut.stride, full_last=True)
    rows = [Scored(row, first) for row, first in found]
    # Tokenizers with words that begin in a space put one in front of the first word.
    spaced = [tokenizer.piece(int(token)).startswith(b" ") for token in tokens[:1]]
    added = any(spaced) and not text.given.startswith(" ")
    lossy = int(sizes[tokens].sum()) - added < len(text.given.encode())
    counts = len(text.original.encode()), count_words(text.original)
    yield Unit(text.id, rows, *counts, lossy=lossy)


def _last_words(texts: Sequence[Text], tokenizer: Tokenizer, cut: Cut) -> Iterator[Unit]:
  pairs = [_at_last_space(text) for text in texts]
  encoded = encode_pairs(pairs, tokenizer)
  for text, (_, word), (before, target, merged) in zip(texts, pairs, encoded, strict=True):
    if len(target) > cut.max_length:
      raise ValueError(
        f"the last word of {text.id} has {len(target)} tokens, and a row {cut.max_length} inputs; "
        "set --max_length to more"
      )
    context = _behind(cut.front, before)
    context = context if len(context) else _behind((start_token(tokenizer),), context)
    row = np.concatenate([context, target])[-(cut.max_length + 1) :]
    yield Unit(text.id, [Scored(row, len(row) - len(target))], len(word.encode()), 1, merged)


def _at_last_space(text: Text) -> tuple[str, str]:
  context, _, word = text.given.rpartition(" ")
  return context, f" {word}"


def encode_pairs(
  pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer
) -> list[tuple[np.ndarray, np.ndarray, bool]]:
  """Returns context and continuation as tokens, cut as lm-evaluation-harness cuts them.

  Spaces at the end of a context go to the continuation, both are encoded together, and the
  continuation begins behind as many tokens as the context has alone. Where nothing would be left,
  the last token, which the two share, is the continuation, and the third value is true.
  """
  moved = []
  for context, continuation in pairs:
    bare = context.rstrip()
    moved.append((bare, context[len(bare) :] + continuation))
  whole = tokenizer.encode_batch([context + continuation for context, continuation in moved])
  alone = tokenizer.encode_batch([context for context, _ in moved])
  found = []
  for tokens, before in zip(whole, alone, strict=True):
    start = min(len(before), len(tokens) - 1)
    found.append((tokens[:start], tokens[start:], start < len(before)))
  return found


def _tokens(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
  """Returns the tokens of a file, after checking that they fit the tokenizer."""
  read = {"nanogpt": token_files.read_nanogpt, "llmc": token_files.read_llmc}[corpus.convention]
  path = corpus.file()
  tokens, shown = read(path, _MOST_TOKENS[corpus.convention]), corpus_files.spelled(path)
  if int(tokens.max()) >= tokenizer.vocab_size:
    raise ValueError(
      f"{shown} holds token {int(tokens.max())}, and the tokenizer has {tokenizer.vocab_size}; "
      "score a model with the tokenizer that wrote the file"
    )
  ends = int(np.count_nonzero(tokens == tokenizer.eot_id))
  if not ends or (corpus.convention == "llmc" and tokens[0] != tokenizer.eot_id):
    where = "at its beginning" if corpus.convention == "llmc" else "anywhere"
    raise ValueError(
      f"{shown} has no end of text ({tokenizer.eot_id} in the tokenizer) {where}; score a model "
      "with the tokenizer that wrote the file"
    )
  return tokens.astype(np.int32)


def _stream_units(tokens: np.ndarray, sizes: np.ndarray, width: int, stride: int) -> Iterator[Unit]:
  """Yields the windows of a stream of tokens [n], which stand for `sizes` [n] bytes of text."""
  for number, (row, first) in enumerate(windows(tokens, width, stride, full_last=False)):
    start = number * stride
    size = int(sizes[start + first : start + len(row)].sum())
    yield Unit(str(number), [Scored(row, first)], size, 0)


def _behind(front: tuple[int, ...], tokens: np.ndarray) -> np.ndarray:
  return np.concatenate([np.array(front, np.int32), tokens])


def _batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
  return batched(texts, lambda text: len(text.given), _CHARACTERS)


def first_units(found: Iterator[Unit], limit: int) -> Iterator[Unit]:
  """Returns the first units, or all of them if the limit is 0."""
  return itertools.islice(found, limit or None)
