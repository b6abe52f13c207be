"""Files of GPT-2 tokens: nanoGPT's without a header, llm.c's behind one, and what is neither."""

import os
import re

import numpy as np
import pytest

from resjax.data import token_files

TOKENS = np.array([256, 1, 2, 65535, 3], np.uint16)


def header(*values):
  return np.array([*values, *[0] * (256 - len(values))], np.int32).tobytes()


def refused(read, path, message):
  with pytest.raises(ValueError, match=re.escape(message)) as caught:
    read(path, 100)
  assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_tokens(tmp_path):
  plain, behind = tmp_path / "val.bin", tmp_path / "fineweb_val.bin"
  plain.write_bytes(TOKENS.tobytes())
  behind.write_bytes(header(20240520, 1, 5) + TOKENS.tobytes())
  for most in (1, 4, 5, 1000):
    np.testing.assert_array_equal(token_files.read_nanogpt(plain, most), TOKENS[:most])
    np.testing.assert_array_equal(token_files.read_llmc(behind, most), TOKENS[:most])


def test_what_is_no_file_of_llmc(tmp_path):
  path = tmp_path / "x.bin"
  for content, message in (
    (b"", "has 0 bytes, and the header of llm.c alone 1,024"),
    (header(20240520, 1, 5)[:100], "has 100 bytes, and the header"),
    (header(20240521, 1, 5), "256 int32"),
    (header(20240521, 1, 5) + TOKENS.tobytes(), "[20240521, 1]"),
    (header(20240520, 2, 5) + TOKENS.tobytes(), "[20240520, 2]"),
    (header(20240520, 1, 6) + TOKENS.tobytes(), "tells of 6 tokens, and 10 bytes"),
    (header(20240520, 1, 2**31 - 1) + TOKENS.tobytes(), "tells of 2,147,483,647"),
    (header(20240520, 1, -1) + TOKENS.tobytes(), "tells of -1"),
    (header(20240520, 1, 0), "tells of 0"),
  ):
    path.write_bytes(content)
    refused(token_files.read_llmc, path, message)


def test_what_is_no_file_of_nanogpt(tmp_path):
  path = tmp_path / "x.bin"
  for content, message in (
    (b"", "0 bytes"),
    (b"abc", "3 bytes"),
    (header(20240520, 1, 5) + TOKENS.tobytes(), "header of llm.c; read it as llmc:"),
  ):
    path.write_bytes(content)
    refused(token_files.read_nanogpt, path, message)


def test_pipes_are_refused(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  for read in (token_files.read_nanogpt, token_files.read_llmc):
    with pytest.raises(ValueError, match="no regular file"):
      read(tmp_path / "pipe", 10)
