"""What pages of HTML are checked for in a browser: the answer first, and no number broken."""

# Numbers in sentences and cells whose letters stand in several lines; names may be broken.
BROKEN_NUMBERS = r"""(() => {
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const element = node.parentElement;
    if (!element.checkVisibility() || element.closest('pre, code, strong')) continue;
    for (const match of node.data.matchAll(/[-+]?\d[\d.,]*\d%?|\d%/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (tops.size > 1) found.push(match[0] + ' in ' + node.data);
    }
  }
  return found;
})()"""

# The lowest pixel of the answers, and whether any of them is wider than the window.
ANSWERS = """[...document.querySelectorAll('.answer')].map(e => {
  const box = e.getBoundingClientRect();
  return {text: e.innerText, bottom: box.bottom + scrollY, right: box.right};
})"""


def check(page, width: int, height: int = 800) -> list[str]:
  """Returns the answers of the page that is open, which stand in the first screen as a whole."""
  answers = page.evaluate(ANSWERS)
  assert answers and max(one["bottom"] for one in answers) <= height, answers
  assert max(one["right"] for one in answers) <= width
  assert page.evaluate(BROKEN_NUMBERS) == []
  assert page.evaluate("document.documentElement.scrollWidth") <= width
  assert page.console == []
  return [one["text"] for one in answers]
