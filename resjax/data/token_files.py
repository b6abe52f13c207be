"""Files of GPT-2 tokens as nanoGPT and llm.c write them, for comparisons with published losses.

nanoGPT: uint16 tokens alone, with an end of text after each document. llm.c, modded-nanogpt: a
header of 256 int32 (20240520, 1, the number of tokens), uint16 tokens, an end of text before each.
"""

import numpy as np

from resjax.base import Location, locations
from resjax.data import corpus_files

MAGIC, VERSION = 20240520, 1
_HEADER = 256  # int32 values
_MOST_BYTES = 1 << 31  # of a file that is read


def read_nanogpt(path: Location, most: int) -> np.ndarray:
  """Returns the first tokens of a file of nanoGPT, at most `most`, uint16 [n].

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no regular file, has no token or half a one, or has the header of llm.c.
  """
  content, shown = _read(path, 2 * most), corpus_files.spelled(path)
  if len(content) < 2 or len(content) % 2:
    raise ValueError(f"{shown} has {len(content)} bytes, which are no uint16 tokens")
  if len(content) >= 8 and np.frombuffer(content[:8], "<i4").tolist() == [MAGIC, VERSION]:
    raise ValueError(f"{shown} has the header of llm.c; read it as llmc:{shown}")
  return np.frombuffer(content, "<u2")


def read_llmc(path: Location, most: int) -> np.ndarray:
  """Returns the first tokens of a file of llm.c, at most `most`, uint16 [n].

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no regular file, or its header has another form than that of version 1, or
      tells of more tokens than there are, or of none.
  """
  content, shown = _read(path, 4 * _HEADER + 2 * most), corpus_files.spelled(path)
  if len(content) < 4 * _HEADER:
    raise ValueError(
      f"{shown} has {len(content):,} bytes, and the header of llm.c alone {4 * _HEADER:,}; copy it "
      f"anew, or read a file without one as nanogpt:{shown}"
    )
  header = np.frombuffer(content, "<i4", _HEADER)
  if header[:2].tolist() != [MAGIC, VERSION]:
    found = header[:2].tolist()
    raise ValueError(
      f"{shown} begins with {found}, not with the header of llm.c, 256 int32 of which the first "
      f"are {[MAGIC, VERSION]}; a file without one is read as nanogpt:{shown}"
    )
  count, rest = int(header[2]), len(content) - 4 * _HEADER
  here = min(count, most)
  if count < 1 or rest < 2 * here:
    raise ValueError(
      f"{shown}: its header tells of {count:,} tokens, and {rest:,} bytes follow; copy it anew"
    )
  return np.frombuffer(content, "<u2", here, 4 * _HEADER)


def _read(path: Location, most: int) -> bytes:
  with locations.open_regular(path) as file:
    return file.read(min(most, _MOST_BYTES))
