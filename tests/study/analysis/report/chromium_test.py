"""The page in headless Chromium, as wide as a telephone and as a desktop screen.

$RESJAX_SCREENSHOTS: a folder that keeps the pictures.
"""

import os
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from tests.helpers import chromium, pages

pytestmark = [
  pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium on PATH"),
  pytest.mark.slow,
]

WIDTHS = (400, 1600)
LEGIBLE = 12  # pixels

IMAGES = """[...document.querySelectorAll('figure')].filter(f => f.checkVisibility()).map(f => {
  const image = f.querySelector('img'), box = image.getBoundingClientRect();
  return {name: f.id, wide: f.className == 'wide', natural: image.naturalWidth,
          left: box.left, top: box.top + scrollY, width: box.width, height: box.height,
          scrolls: f.scrollWidth > f.clientWidth, caption: f.querySelector('figcaption').innerText};
})"""

# The colours and sizes of all texts.
TEXTS = """[...document.querySelectorAll('h1,h2,h3,p,figcaption,summary,th,td,.key')]
.filter(e => e.checkVisibility()).map(e => {
  const style = getComputedStyle(e);
  let at = e, back = style.backgroundColor;
  while (back == 'rgba(0, 0, 0, 0)' && at.parentElement) {
    at = at.parentElement; back = getComputedStyle(at).backgroundColor;
  }
  return {text: e.innerText, color: style.color, back: back, size: parseFloat(style.fontSize)};
})"""

SCROLLS = """[...document.querySelectorAll('.scroll')].map(e => {
  const box = e.getBoundingClientRect();
  return {heat: e.querySelector('.heat') != null, left: box.left, right: box.right,
          inner: e.scrollWidth, outer: e.clientWidth, height: box.height,
          last: e.querySelector('th:last-child').getBoundingClientRect().right,
          fades: getComputedStyle(e).maskImage != 'none'};
})"""

# The places of the names of columns and rows after the table has been scrolled.
STICKY = """(() => {
  const e = document.querySelector('.scroll:has(.heat)');
  e.scrollLeft = 60; e.scrollTop = 40;
  const box = e.getBoundingClientRect();
  const head = e.querySelector('thead th:last-child').getBoundingClientRect();
  const row = e.querySelector('tbody tr:last-child th').getBoundingClientRect();
  return [head.top - box.top, row.left - box.left];
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
  with chromium.page(tmp_path_factory.mktemp("chromium")) as page:
    yield page


@pytest.fixture(scope="module", params=WIDTHS)
def opened(request, browser, folder, tmp_path_factory):
  """Returns the page, its width, and a picture of it [height, width, 3 or 4]."""
  browser.console.clear()
  browser.requests.clear()
  browser.open(folder / "report.html", request.param)
  pictures = os.environ.get("RESJAX_SCREENSHOTS")
  kept = Path(pictures) if pictures else tmp_path_factory.mktemp("screenshots")
  picture = kept / f"report-{request.param}.png"
  browser.screenshot(picture)
  return browser, request.param, matplotlib.image.imread(picture)


def test_no_console_message_and_no_request(opened):
  page, _, _ = opened
  assert page.console == []
  assert [url.partition(":")[0] for url in page.requests].count("file") == 1
  assert all(url.startswith(("file:", "data:")) for url in page.requests)


def test_the_browser_would_have_told(tmp_path):
  """The lists of messages and requests of another test are empty although they are recorded."""
  path = tmp_path / "bad.html"
  path.write_text("<img src='https://example.invalid/a.png'><script>nowhere()</script>")
  with chromium.page(tmp_path / "profile") as page:
    page.open(path, 400)
    assert any("nowhere is not defined" in text for _, text in page.console)
    assert any(url.startswith("https://example.invalid") for url in page.requests)


def test_figures_are_visible(opened):
  page, width, picture = opened
  images = page.evaluate(IMAGES)
  names = {image["name"] for image in images}
  assert {"1_rank", "1_depth_attention", "1_cuts_1", "2_norm", "overlay_rank_next_token"} <= names
  assert "1_read_rank" not in names  # This one is folded away.
  for image in images:
    assert image["natural"] > 0 and image["caption"]
    # Letters of 8.5 points keep at least three quarters of their size.
    assert image["width"] >= 0.75 * min(image["natural"], 480), image
    assert image["left"] >= 0 and (image["scrolls"] or image["left"] + image["width"] <= width)
    left, top = int(image["left"]), int(image["top"])
    shown = picture[top : top + int(image["height"]), left : left + int(image["width"])]
    dark = (shown[..., :3].max(-1) < 0.5).mean()  # Letters and lines are dark.
    assert 0.002 < dark < 0.5, (image, dark)


def test_columns_follow_the_width(opened):
  page, width, _ = opened
  lefts = {round(i["left"]) for i in page.evaluate(IMAGES) if i["name"].startswith("2_")}
  assert len(lefts) == {400: 1, 1600: 3}[width]
  assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_tables_scroll_in_their_frame(opened):
  page, width, _ = opened
  for frame in page.evaluate(SCROLLS):
    assert frame["left"] >= 0 and frame["right"] <= width
    # Where a number may be cut by the edge of the frame, it fades.
    assert frame["fades"] == (frame["inner"] > frame["outer"] and not frame["heat"])
    if frame["heat"]:
      assert frame["last"] <= frame["right"] + 1  # The last layer is in view.
      assert frame["height"] > 150
      assert (frame["inner"] > frame["outer"]) == (width == 400)
  if width == 400:
    top, left = page.evaluate(STICKY)
    assert abs(top) <= 2 and abs(left) <= 2


def test_the_first_screen_has_the_answer_and_no_number_is_broken(opened):
  page, width, _ = opened
  answers = pages.check(page, width)
  assert len(answers) == 2 and all("times better than a random one" in text for text in answers)
  # The first column is in view, whatever else there is.
  box = """(() => {
    const box = document.querySelector('#summary td').getBoundingClientRect();
    return [box.left, box.right, box.bottom + scrollY];
  })()"""
  left, right, bottom = page.evaluate(box)
  assert left >= 0 and right <= width and bottom <= 800


def test_text_is_legible(opened):
  page, _, _ = opened
  texts = page.evaluate(TEXTS)
  assert len(texts) > 80
  for found in texts:
    assert found["size"] >= LEGIBLE, found
    assert contrast(found["color"], found["back"]) >= 4.5, found


def test_what_is_folded_opens(opened):
  page, _, _ = opened
  page.evaluate("document.querySelector('details').open = true")
  images = [i for i in page.evaluate(IMAGES) if i["name"].startswith("1_read_")]
  assert len(images) == 10 and all(i["width"] > 300 for i in images)


def contrast(one: str, two: str) -> float:
  """Returns the contrast of WCAG 2.1 of two CSS colours; no background is the white of the page."""
  low, high = sorted(map(luminance, (one, two)))
  return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
  parts = colour[colour.index("(") + 1 : -1].split(",")
  if len(parts) == 4 and float(parts[3]) == 0:
    return 1.0
  values = np.array([float(part) for part in parts[:3]]) / 255
  linear = np.where(values <= 0.03928, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
  return float(linear @ [0.2126, 0.7152, 0.0722])
