"""The tokenizer of a synthetic task: one printable character for each of its symbols."""

import functools
import itertools
import json
from collections.abc import Iterable, Sequence

import numpy as np

from resjax.base import Location, locations
from resjax.data.special_tokens import Around
from resjax.data.synthetic import tasks
from resjax.data.token_spelling import END_OF_TEXT


class SyntheticTokenizer:
  """The tokenizer whose token i is the i-th printable character from `!` on; then end of text.

  Args:
    source: the task, as `tasks.parse` reads it; kept as an attribute.

  Attributes:
    task: the task.
  """

  def __init__(self, source: str):
    self.source, self.task = source, tasks.parse(source)
    self.eot_id = self.task.num_symbols
    self.vocab_size = self.eot_id + 1
    self.end_ids: tuple[int, ...] = (self.eot_id,)
    self.documents = Around((self.eot_id,))
    self._characters = _characters(self.task.num_symbols)
    self._number = {character: i for i, character in enumerate(self._characters)}

  def spell(self, document: np.ndarray) -> str:
    """Returns the text of a document of the task."""
    return "".join(self._characters[symbol] for symbol in document)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the symbols of each text, int32.

    Raises:
      ValueError: a character is no symbol of the task.
    """
    try:
      return [np.array([self._number[c] for c in text], np.int32) for text in texts]
    except KeyError as error:
      alphabet = f"{self._characters[0]} to {self._characters[-1]}"
      raise ValueError(
        f"{error.args[0]!r} is no symbol of {self.source}; allowed: {alphabet}"
      ) from None

  def encode_with_bytes(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the symbols of each text, and the bytes of each symbol and a zero behind."""
    sizes = self.token_bytes().astype(np.int64)
    return [(ids, np.append(sizes[ids], 0)) for ids in self.encode_batch(texts)]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`."""
    return b"".join(map(self.piece, ids)).decode()

  def piece(self, token: int) -> bytes:
    """Returns the character of a token, or the end of text spelled out."""
    return (END_OF_TEXT if token == self.eot_id else self._characters[token]).encode()

  def token_bytes(self) -> np.ndarray:
    """Returns int32 [V]: the UTF-8 bytes of each character, 0 for end of text."""
    return np.append(symbol_bytes(self.task.num_symbols), np.int32(0))

  def save(self, path: Location) -> None:
    """Writes the name of the tokenizer and its task."""
    locations.write_text(path, json.dumps({"name": "synthetic", "source": self.source}))


@functools.cache
def symbol_bytes(count: int) -> np.ndarray:
  """Returns int32 [count]: the UTF-8 bytes of the character of each symbol."""
  return np.array([len(character.encode()) for character in _characters(count)], np.int32)


@functools.cache
def _characters(count: int) -> tuple[str, ...]:
  printable = (chr(i) for i in itertools.count(ord("!")) if chr(i).isprintable())
  return tuple(itertools.islice(printable, count))
