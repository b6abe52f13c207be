"""Encodes text by a model of the `tokenizers` library so that no control token comes out of it.

A text may spell `</s>`, or characters that a normaliser turns into it. The library keeps tokens
with the flag `special` out of texts where it is asked to; but a token may lack the flag, and the
pieces of Unigram, the words of WordPiece and the merges of BPE know no flags. So the model that
encodes texts differs from the given one: all control tokens have the flag, and its vocabulary
spells them as no text does, so that the same characters are spelled by other tokens. What it cannot
spell otherwise, such as an unknown word where its token is also the end of text, is left out.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import tokenizers

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_LONGEST_WORD = (
  100  # characters that WordPiece takes for a word, unless its model has another limit
)
_MOST_PADDING = 1 << 12

Json = dict[str, Any]


class TextEncoder:
  """Encodes text that is nothing but text.

  Args:
    content: the model, JSON in the format of the `tokenizers` library.
    ends: the tokens that begin or end texts.
    special: tokens that count as if they had the flag `special`.
    markup: added tokens that texts become where they spell them, whatever they are otherwise.

  Attributes:
    control: the tokens that no text becomes: `ends`, and special tokens but that of what the
      vocabulary cannot spell. A token is text where it is the only one of a character.
  """

  def __init__(
    self,
    content: str,
    ends: Collection[int],
    special: Collection[int] = (),
    markup: Collection[int] = (),
  ):
    parts = msgspec.json.decode(content)
    self.control = _control(parts, frozenset(ends), frozenset(special)) - frozenset(markup)
    mark = hashlib.sha256(content.encode()).hexdigest()
    if _let_in(parts, frozenset(markup)) | _keep_out(parts, self.control, mark):
      content = msgspec.json.encode(parts).decode()
    self._model = tokenizers.Tokenizer.from_str(content)
    self._model.encode_special_tokens = True
    self._model.no_truncation()
    self._model.no_padding()
    self._beyond = max(self.control, default=-1) + 1
    self._is_control = np.isin(np.arange(self._beyond + 1), list(self.control))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the tokens of each text, int32, without tokens that begin or end a text."""
    encodings = self._model.encode_batch_fast(list(texts), add_special_tokens=False)
    return [self._text_alone(np.array(encoding.ids, np.int32)) for encoding in encodings]

  def encode_with_bytes(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the tokens of each text, and how many bytes of the text each of them stands for.

    A token stands for the characters from the end of the one before to its own end, as the library
    follows them through normalisers. This takes several times as long as `encode_batch`.

    Returns:
      For each text its tokens [n], int32, and how many bytes each one has [n + 1], int64, the last
      of which counts the bytes behind the tokens; their sum is the length of the text.
    """
    encodings = self._model.encode_batch(list(texts), add_special_tokens=False)
    return [self._with_bytes(*pair) for pair in zip(texts, encodings, strict=True)]

  def _with_bytes(self, text: str, encoding: tokenizers.Encoding) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array(encoding.ids, np.int32)
    ends = np.array(encoding.offsets, np.int64).reshape(-1, 2)[:, 1]
    ends = np.maximum.accumulate(ends[~self._is_control[np.minimum(ids, self._beyond)]])
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    before = np.concatenate([[0], np.cumsum(sizes)])
    at = np.concatenate([[0], before[ends], before[-1:]])
    return self._text_alone(ids), np.diff(at)

  def _text_alone(self, ids: np.ndarray) -> np.ndarray:
    found = self._is_control[np.minimum(ids, self._beyond)]
    return ids[~found] if found.any() else ids


def _control(parts: Json, ends: frozenset[int], special: frozenset[int]) -> frozenset[int]:
  """Returns the tokens that no text may become, see `TextEncoder`."""
  model, added = parts["model"], parts.get("added_tokens") or []
  flagged = special.union(token["id"] for token in added if token["special"])
  control = ends | (flagged - {_unknown(model)})
  spelled = _spellings(model, control)
  only = {i for i, word in spelled.items() if _BYTE.fullmatch(word)}
  if not model.get("byte_fallback"):
    only |= {i for i, word in spelled.items() if len(word) == 1}
  return control - only


def _let_in(parts: Json, markup: frozenset[int]) -> bool:
  """Takes the flag `special`, which keeps tokens out of texts, from some; says if any had it."""
  some = [t for t in parts.get("added_tokens") or [] if t["id"] in markup and t["special"]]
  for token in some:
    token["special"] = False
  return bool(some)


def _keep_out(parts: Json, control: frozenset[int], mark: str) -> bool:
  """Changes a model so that texts do not become control tokens; returns whether it had to.

  Args:
    parts: the model, which is changed.
    control: the tokens.
    mark: what no text has by chance, nor by the will of whoever has not seen the tokenizer.
  """
  model, added = parts["model"], parts.get("added_tokens") or []
  unflagged = [token for token in added if token["id"] in control and not token["special"]]
  for token in unflagged:
    token["special"] = True
  reached = _reachable(model, control)
  if not reached:
    return bool(unflagged)
  length = 1 + min(model.get("max_input_chars_per_word", _LONGEST_WORD), _MOST_PADDING)
  names = {word: f"{mark}{i}".ljust(length, "\0") for i, word in reached.items()}
  if isinstance(model["vocab"], list):
    model["vocab"] = [[names.get(word, word), score] for word, score in model["vocab"]]
  else:
    model["vocab"] = {names.get(word, word): i for word, i in model["vocab"].items()}
  if "merges" in model:
    merged = ((_merged(model, merge), *_pair(merge)) for merge in model["merges"])
    kept = [not names.keys() & words for words in map(set, merged)]
    model["merges"] = [m for m, keep in zip(model["merges"], kept, strict=True) if keep]
  # Under its old spelling the library would take such a token for a new one and number it anew.
  parts["added_tokens"] = [token for token in added if token["content"] not in names]
  return True


def _reachable(model: Json, control: frozenset[int]) -> dict[int, str]:
  """Returns the spellings of control tokens that encoding can produce without special tokens."""
  if isinstance(model["vocab"], list):  # Unigram takes any piece, also that of unknown characters.
    unknown = _unknown(model)
    return _spellings(model, control if unknown is None else control | {unknown})
  spelled = _spellings(model, control - {_unknown(model)})  # named by its spelling in the model
  if "merges" not in model or model.get("ignore_merges"):
    return spelled
  few = {i: word for i, word in spelled.items() if len(word) > 1}
  made = {_merged(model, merge) for merge in model["merges"]} if few else set()
  return {i: word for i, word in spelled.items() if len(word) == 1 or word in made}


def _spellings(model: Json, ids: Collection[int]) -> dict[int, str]:
  """Returns how the vocabulary spells these tokens; some may be added to it and not be there."""
  vocabulary = model["vocab"]
  if isinstance(vocabulary, list):
    return {i: vocabulary[i][0] for i in ids if 0 <= i < len(vocabulary)}
  return {i: word for word, i in vocabulary.items() if i in ids}


def _unknown(model: Json) -> int | None:
  """Returns the unknown token of a vocabulary, or None."""
  if isinstance(model["vocab"], list):
    return model.get("unk_id")
  return model["vocab"].get(model.get("unk_token"))


def _pair(merge: str | list[str]) -> tuple[str, str]:
  left, right = merge.split(" ") if isinstance(merge, str) else merge
  return left, right


def _merged(model: Json, merge: str | list[str]) -> str:
  left, right = _pair(merge)
  return left + right.removeprefix(model.get("continuing_subword_prefix") or "")
