"""Digests of the documents of a corpus, in order, which can tell where two corpora differ.

Every document has a digest of its text. Pairs of neighbours are hashed again, and so on, which
gives a tree whose root is the digest of the corpus (Merkle 1988). A level of the tree with at most
`MOST_BLOCKS` + 1 digests is kept too. It takes 2 MB, and tells where the documents differ from
an earlier version: which one in a corpus of up to `MOST_BLOCKS` documents, else which few.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

from resjax.base import typed_json

MOST_BLOCKS = 1 << 16

_SIZE = 16  # bytes of a digest
_NO_TEXT = b"\0" * _SIZE  # the digest of a document that is not valid Unicode


@dataclasses.dataclass(frozen=True)
class TextDigest:
  """The digests of the documents of a corpus.

  Attributes:
    documents: the number of documents.
    level: each block has 2^level documents, the last one has the rest.
    blocks: the digests of the blocks in order, in hexadecimal digits without separators.
    root: the digest of all, in hexadecimal digits.
  """

  documents: Annotated[int, msgspec.Meta(ge=0)]
  level: Annotated[int, msgspec.Meta(ge=0, le=62)]
  blocks: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]*$")]
  root: str

  @property
  def is_whole(self) -> bool:
    """Whether the blocks hash to the root; in a damaged record they do not."""
    blocks = self._at(self.level)
    count = -(-self.documents // 2**self.level)
    return len(blocks) == count and _root(blocks, self.documents) == self.root

  def first_difference(self, other: "TextDigest") -> tuple[int, int] | None:
    """Returns the range [first, end) of the first documents that differ between two corpora.

    A range has more than one document where the records cannot tell them apart. It may begin at the
    end of either corpus, which has no such document then. None stands for the same text.
    """
    level = max(self.level, other.level)
    mine, theirs = self._at(level), other._at(level)
    pairs = zip(mine, theirs, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))
    if same == len(mine) == len(theirs):
      return None
    return same << level, (same + 1) << level

  def num_differences(self, other: "TextDigest") -> int | None:
    """Returns how many documents of two corpora of the same length differ; None: not known."""
    if self.documents != other.documents or self.level or other.level:
      return None
    return sum(a != b for a, b in zip(self._at(0), other._at(0), strict=True))

  def _at(self, level: int) -> list[bytes]:
    """Returns the digests of a level that is not below that of the blocks."""
    whole = bytes.fromhex(self.blocks[: len(self.blocks) // 2 * 2])
    blocks = [whole[start : start + _SIZE] for start in range(0, len(whole), _SIZE)]
    for _ in range(level - self.level):
      blocks = _pairs(blocks)
    return blocks


class TextHasher:
  """Takes the documents of a corpus one by one, and gives its `TextDigest` in bounded memory."""

  def __init__(self) -> None:
    self._documents = self._level = 0
    self._blocks: list[bytes] = []
    self._rest: list[bytes] = []  # the digests of the documents after the last complete block

  def add(self, text: str | None) -> bytes:
    """Takes the next document, None where it is not valid Unicode; returns its digest."""
    found = digest_of(text)
    self._documents += 1
    self._rest.append(found)
    if len(self._rest) == 1 << self._level:
      if len(self._blocks) < MOST_BLOCKS:
        self._blocks.append(_fold(self._rest))
        self._rest = []
      else:  # From now on, the rest is half a block.
        self._blocks = _pairs(self._blocks)
        self._level += 1
    return found

  def digest(self) -> TextDigest:
    """Returns the digest of the documents so far."""
    blocks = [*self._blocks, *([_fold(self._rest)] if self._rest else [])]
    root = _root(blocks, self._documents)
    return TextDigest(self._documents, self._level, b"".join(blocks).hex(), root)


def digest_of(text: str | None) -> bytes:
  """Returns the digest of a document; None stands for one that is not valid Unicode."""
  return _NO_TEXT if text is None else _hash(text.encode())


def place_of(digest: bytes) -> float:
  """Returns the place in [0, 1) that the digest of a document gives it; splits are ranges of it."""
  return int.from_bytes(digest[:8], "big") / 2**64


def of_records(folder: Path) -> TextDigest | None:
  """Returns the digest that a build noted beside the text of a corpus; None where there is none."""
  try:
    found = typed_json.read(folder / "metadata.json", _Metadata).text
  except (OSError, ValueError):
    return None
  return found if found and found.is_whole else None


@dataclasses.dataclass(frozen=True)
class _Metadata:
  text: TextDigest | None = None


def _hash(content: bytes) -> bytes:
  return hashlib.blake2b(content, digest_size=_SIZE).digest()


def _pairs(digests: list[bytes]) -> list[bytes]:
  """Returns the next level of the tree, where a last digest without a neighbour stays."""
  pairs = zip(digests[::2], digests[1::2], strict=False)
  return [*(_hash(a + b) for a, b in pairs), *(digests[-1:] if len(digests) % 2 else ())]


def _fold(digests: list[bytes]) -> bytes:
  while len(digests) > 1:
    digests = _pairs(digests)
  return digests[0]


def _root(blocks: list[bytes], documents: int) -> str:
  top = _fold(blocks) if blocks else b""
  return _hash(documents.to_bytes(8, "big") + top).hex()
