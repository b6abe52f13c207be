"""Every token is shown as visible text."""

import unicodedata

import pytest

from resjax.data.tokenizer import ByteTokenizer
from resjax.study.analysis.report.heat_table import visible


@pytest.mark.parametrize(
  ("piece", "shown"),
  [
    (b"def", "def"),
    (b" return", "␣return"),
    (b"\n    x", "↵␣␣␣␣x"),
    (b"\n" + 12 * b" ", "↵␣×12"),
    (b"\t\r\n", "⇥␍↵"),
    (b"", "∅"),
    (b"\xe2\x82", "\\xe2\\x82"),  # Two of the three bytes of €.
    ("a\u200bb\u00a0\x07".encode(), "a\\u200bb\\xa0\\x07"),
    ("\u0301".encode(), "◌\u0301"),
    ("e\u0301 日本".encode(), "e\u0301␣日本"),
    ("\u202eabc".encode(), "\\u202eabc"),  # It would turn the rest of the line around.
    (b"<script>&'\"", "<script>&'\""),  # The page escapes it.
  ],
)
def test_what_is_shown(piece, shown):
  assert visible(piece) == shown


def test_no_byte_is_invisible_and_no_two_look_the_same():
  words = ByteTokenizer()
  shown = [visible(words.piece(token)) for token in range(words.vocab_size)]
  assert len(set(shown)) == len(shown)
  for text in shown:
    assert text and not any(unicodedata.category(c)[0] in "ZC" for c in text)
