"""The check of page widths that `make docs` runs tells a page that is too wide."""

import re

import pytest

from tests import site_widths
from tests.helpers import chromium

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium on PATH")


def test_a_page_that_is_too_wide_is_named(tmp_path, capsys):
  hides, box = "<style>html {overflow-x: hidden}</style>", "<div style='{}px'>.</div>"
  for name, text in (
    ("narrow", box.format("width: 300")),
    ("scrolls", f"<div style='overflow-x: auto'>{box.format('width: 900')}</div>"),
    ("wide", hides + box.format("width: 900")),
    ("wider", box.format("width: 1700")),
    ("word", hides + "<p>" + "w" * 90),
  ):
    (tmp_path / f"{name}.html").write_text(f"<article>{text}</article>")
  assert site_widths.main([str(tmp_path)]) == 1
  lines = capsys.readouterr().err.splitlines()
  found = [re.search(r"(\w+)\.html is \d+ pixels wide in .* (\d+)$", line) for line in lines]
  assert [one.groups() for one in found] == [
    ("wide", "400"), ("wider", "400"), ("word", "400"), ("wider", "1600")
  ]  # fmt: skip
  assert site_widths.main([str(tmp_path / "nothing")]) == 1
