"""What `make docs` makes of the repository: the gallery, its pictures, and docstrings.

`make docs` itself builds the site, and fails for a warning, a dead link or a notebook that fails.
"""

import importlib.util
import re

from resjax import combinators
from tests.helpers.stand_ins import ROOT

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
    assert drawn.startswith("<div") and drawn.endswith("</svg></div>")
    longest = max(len(text) for text in re.findall(r">([^<>]+)</text>", drawn))
    assert longest <= 26  # what fits into the widest box


def test_gallery_has_every_system(monkeypatch):
  monkeypatch.syspath_prepend(str(SITE))
  pages = site_module("gallery").pages()
  assert tuple(pages) == combinators.names()
  for name, page in pages.items():
    assert f"# `{name}`" in page and "{" not in re.sub(r"<svg.*</svg>|\{eval-rst\}", "", page)


def test_docstrings_become_restructured_text():
  lines = ["A * b, `x * y`s and v_.", "", "  z = 1", "", "Args:", "  **kwargs: a | b.", ""]
  site_module("docstrings").to_rst(None, "class", "A", None, None, lines)
  assert lines == [
    r"A \* b, ``x * y``\ s and v\_.", "", "::", "", "    z = 1", "", "Args:",
    r"  **kwargs: a | b.", "",
  ]  # fmt: skip
