"""How vocabularies spell tokens, and the bytes of text that a spelling stands for."""

import re

from tokenizers import pre_tokenizers

END_OF_TEXT = "<|endoftext|>"

_SENTENCEPIECE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SENTENCEPIECE_SPACE = "\u2581"


def _byte_alphabet() -> dict[str, int]:
  """Returns the byte that each character of the byte-level alphabet stands for.

  A character below 256 stands for its own byte; the others stand for the remaining bytes in order.
  """
  characters = sorted(pre_tokenizers.ByteLevel.alphabet())
  own = {character: ord(character) for character in characters if ord(character) < 256}
  rest = sorted(set(range(256)) - set(own.values()))
  return own | dict(zip(characters[len(own) :], rest, strict=True))


_BYTE_ALPHABET = _byte_alphabet()


def from_byte_level(spelling: str) -> bytes:
  """Returns the bytes of a token of byte-level BPE, which spells each byte as one character.

  Some special tokens have characters outside the alphabet; those stand for themselves.
  """
  return b"".join(
    bytes([_BYTE_ALPHABET[character]]) if character in _BYTE_ALPHABET else character.encode()
    for character in spelling
  )


def from_sentencepiece(spelling: str) -> bytes:
  """Returns the bytes of a SentencePiece token, which spells a space as ▁ and a byte as <0x0A>."""
  byte = _SENTENCEPIECE_BYTE.fullmatch(spelling)
  if byte:
    return bytes([int(byte[1], 16)])
  return spelling.replace(_SENTENCEPIECE_SPACE, " ").encode()
