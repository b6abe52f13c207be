"""Bytes that tokens stand for, from how vocabularies spell them."""

import re

from tokenizers import pre_tokenizers

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte that is no character
_SPACE = "\u2581"


def _byte_alphabet() -> dict[str, int]:
  """Returns the byte of each character of byte-level BPE: its own, or the next that has none."""
  characters = sorted(pre_tokenizers.ByteLevel.alphabet())
  own = {character: ord(character) for character in characters if ord(character) < 256}
  rest = sorted(set(range(256)) - set(own.values()))
  return own | dict(zip(characters[len(own) :], rest, strict=True))


_ALPHABET = _byte_alphabet()


def of_byte_level(spelled: str) -> bytes:
  """Returns the bytes of a token of byte-level BPE, which spells each as one character.

  A character that spells no byte, as some special tokens have, stands for itself.
  """
  return b"".join(
    bytes([_ALPHABET[character]]) if character in _ALPHABET else character.encode()
    for character in spelled
  )


def of_sentencepiece(spelled: str) -> bytes:
  """Returns the bytes of a token of SentencePiece: ▁ is a space, <0x0A> a byte."""
  byte = _BYTE.fullmatch(spelled)
  return bytes([int(byte[1], 16)]) if byte else spelled.replace(_SPACE, " ").encode()
