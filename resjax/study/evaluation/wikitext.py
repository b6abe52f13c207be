"""WikiText as lm-evaluation-harness (task `wikitext`, version 2) prepares it, and its pages."""

import re
from collections.abc import Iterable, Iterator

_SEPARATORS = "-,."  # stand as " @-@ " between the parts of a number or a word
_MARKS = ":;.!?,"
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))


def detokenise(page: str) -> str:
  """Returns a page without the spaces that WikiText puts around punctuation.

  The text is that of the harness, with its oddities, so that figures can be compared: the order of
  the rules, a pattern for apostrophes that matches only between slashes (and is put there as it is
  written), quotes that are paired across sentences, and the word N that becomes 1.
  """
  page = page.replace("s '", "s'")
  page = re.sub("/' [0-9]/", "/'[0-9]/", page)
  for mark in _SEPARATORS:
    page = page.replace(f" @{mark}@ ", mark)
  for mark in _MARKS:
    page = page.replace(f" {mark} ", f"{mark} ")
  for opening, closing in _PAIRS:
    page = _tightened(page, opening, closing)
  for count in (4, 3, 2):
    page = page.replace(" ".join("=" * count), "=" * count)
  page = page.replace(" ° ", "°").replace(" \n", "\n").replace("\n ", "\n")
  return page.replace(" N ", " 1 ").replace(" 's", "'s")


def _tightened(text: str, opening: str, closing: str) -> str:
  """Returns a text without the spaces inside of brackets; the first one that closes, closes.

  A regular expression would do the same, but take quadratic time on a text of opening brackets.
  """
  parts, end = [], 0
  while (start := text.find(opening, end)) >= 0:
    stop = text.find(closing, start + 1)
    if stop < 0:
      break
    parts += [text[end : start + 1], text[start + 1 : stop].strip(), closing]
    end = stop + 1
  return "".join([*parts, text[end:]])


def count_words(text: str) -> int:
  """Returns how many parts white space cuts a text into, the empty ones at both ends included."""
  return len(re.split(r"\s+", text))


def pages(rows: Iterable[str]) -> Iterator[str]:
  """Yields the pages of WikiText that has a line in every row; pages begin at titles, ` = T = `.

  A row that is empty, as data sets write the empty lines of the original file, is " " again, and
  newlines end the lines but the last one of a page.
  """
  page: list[str] = []
  for row in rows:
    line = row.removesuffix("\n") or " "
    if _is_title(line) and any(before.strip() for before in page):
      yield "\n".join(page)
      page = []
    page = [line] if _is_title(line) else [*page, line]
  if any(line.strip() for line in page):
    yield "\n".join(page)


def _is_title(line: str) -> bool:
  line = line.replace("= = =", "===").replace("= =", "==").strip()
  return line.startswith("= ") and line.endswith(" =")
