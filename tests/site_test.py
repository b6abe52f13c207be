"""What `make docs` makes of the repository: the gallery, its pictures, and docstrings.

`make docs` itself builds the site, and fails for a warning, a dead link or a notebook that fails.
"""

import importlib.util
import json
import re

from resjax import combinators
from tests.helpers.fakes import ROOT
from tests.imports_test import ALLOWED

SITE = ROOT / "docs" / "site"


def site_module(name):
  """Returns a module that builds the site."""
  spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_pictures_show_every_system():
  pictures = site_module("pictures")
  assert set(pictures.FLOWS) == set(combinators.names())
  for name in pictures.FLOWS:
    drawn = pictures.svg(name)
    assert drawn.startswith("<svg") and drawn.endswith("</svg>")
    assert (
      int(re.search(r'viewBox="0 0 (\d+)', drawn)[1]) <= 368
    )  # what a telephone shows of a page
    longest = max(len(text) for text in re.findall(r">([^<>]+)</text>", drawn))
    assert longest <= 26  # what fits into the widest box


def test_the_picture_of_all_rooms_has_them_in_the_order_of_imports():
  rooms = site_module("rooms")
  height = {name.strip("*"): -floor for floor, names in enumerate(rooms.FLOORS) for name in names}
  assert set(height) == set(ALLOWED)
  for room, below in ALLOWED.items():
    assert all(height[room] > height[other] for other in below), room
  drawn = rooms.svg()
  assert (ROOT / "docs" / "rooms.svg").read_text() == drawn, "run python docs/site/rooms.py"
  for names in rooms.FLOORS:  # what fits into the boxes
    assert all(len(what) * len(names) <= 72 for what in names.values()), names


def test_gallery_has_every_system(monkeypatch):
  monkeypatch.syspath_prepend(str(SITE))
  pages = site_module("gallery").pages()
  assert tuple(pages) == combinators.names()
  for name, page in pages.items():
    filled = re.sub(r"<svg.*</svg>|\{(eval-rst|literalinclude)\}", "", page)
    assert f"# `{name}`" in page and "{" not in filled
    named = re.findall(r"\]\(\.\./\.\./\.\./([^)]+)\)", page)
    assert len(named) > 5 and [path for path in named if not (ROOT / path).exists()] == []


def test_docstrings_become_restructured_text():
  lines = ["A * b, `x * y`s and v_.", "", "  z = 1", "", "Args:", "  **kwargs: a | b.", ""]
  site_module("docstrings").to_rst(None, "class", "A", None, None, lines)
  assert lines == [
    r"A \* b, ``x * y``\ s and v\_.", "", "::", "", "    z = 1", "", "Args:",
    r"  **kwargs: a | b.", "",
  ]  # fmt: skip


def test_examples_of_doors_are_literal():
  lines = ["A room.", "", "from a import b", "", "c = b * 2", ""]
  site_module("docstrings").to_rst(None, "module", "a", None, None, lines)
  assert lines == ["A room.", "", "::", "", "  from a import b", "", "::", "", "  c = b * 2", ""]


def test_the_sidebar_has_every_page_once():
  listed = re.findall(r"^[a-z][\w/*]*$", (SITE.parent / "index.md").read_text(), re.MULTILINE)
  own = [name for name in listed if not name.startswith("generated/")]
  pages = {path.stem for path in SITE.parent.glob("*.md")} - {"index"}
  assert len(set(own)) == len(own) and pages == {name for name in own if "/" not in name}


def test_notebooks_have_their_plots_and_no_path_of_a_machine():
  for path in (SITE.parent / "notebooks").glob("*.ipynb"):
    cells = json.loads(path.read_text())["cells"]
    drawn = [cell for cell in cells if "plt." in "".join(cell["source"])]
    assert drawn and all("image/png" in json.dumps(cell["outputs"]) for cell in drawn), path
    assert all(set(one["data"]) == {"image/png"} for c in cells for one in c.get("outputs", ()))
