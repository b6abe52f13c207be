"""Checks that no page of the built site is too wide, on a telephone and on a desktop screen.

  python -m tests.site_widths build/site

`make docs` runs it. Where there is no Chromium it says so and checks nothing. Pages of source code
are left out: there are hundreds, and their lines scroll within a box as those of all others do.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.helpers import chromium

WIDTHS = (400, 1600)  # pixels
# How far a page reaches to the right, without what lies in a box that scrolls. The theme hides what
# is too wide, so that the width of the document does not tell it.
_REACHES = """(() => {
  const page = document.querySelector('article') ?? document.body;
  const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  const within = e => e !== page && (scrolls(e) || within(e.parentElement));
  const ends = [...page.querySelectorAll('*')]
    .filter(e => e.checkVisibility() && !within(e.parentElement))
    .map(e => {
      const box = e.getBoundingClientRect();
      const isPart = e instanceof SVGElement;  // whose widths are those of the whole picture
      return Math.max(box.right, isPart || scrolls(e) ? 0 : box.left + e.scrollWidth);
    });
  return Math.round(Math.max(document.documentElement.scrollWidth, ...ends));
})()"""


def main(words: Sequence[str]) -> int:
  """Prints the pages that are too wide, and returns the exit code."""
  (folder,) = map(Path, words)
  if chromium.PROGRAM is None:
    print("widths of pages are not checked: there is no chromium on PATH")
    return 0
  pages = [path for path in sorted(folder.rglob("*.html")) if "_modules" not in path.parts]
  if not pages:
    print(f"error: {folder} has no pages; make docs builds them", file=sys.stderr)
    return 1
  found = list(too_wide(pages))
  for line in found:
    print(f"error: {line}", file=sys.stderr)
  return 1 if found else 0


def too_wide(pages: Sequence[Path]) -> Iterator[str]:
  """Yields a line for every page that is wider than a window."""
  with tempfile.TemporaryDirectory() as folder, chromium.page(Path(folder)) as browser:
    for width in WIDTHS:
      for path in pages:
        browser.open(path, width)
        reaches = browser.evaluate(_REACHES)
        if reaches > width:
          yield f"{path} is {reaches} pixels wide in a window of {width}"


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
