"""Numbers of pages are those of committed JSON."""

import pytest

from docs import recompute

PAGE = "The arm is <!--a.mean-->0.1<!--/--> above.\n\n<!--a.table-->\nold\n<!--/-->\n"


def test_pages_have_the_numbers_of_their_json(capsys):
  assert recompute.main("--check") == 0, capsys.readouterr().out


def test_a_number_that_differs_is_told_and_written(tmp_path, monkeypatch, capsys):
  path = tmp_path / "page.md"
  path.write_text(PAGE)
  monkeypatch.setattr(recompute, "DOCS", tmp_path)
  made = {"mean": "0.2", "table": "\n| new |\n"}
  monkeypatch.setattr(recompute, "SOURCES", {"a": lambda: made})
  assert recompute.main("--check") == 1 and path.read_text() == PAGE
  said = capsys.readouterr().out
  assert str(path) in said and "<!--a.mean-->0.2<!--/-->" in said and "| new |" in said
  assert recompute.main() == 0
  assert path.read_text() == PAGE.replace("0.1", "0.2").replace("old", "| new |")
  assert recompute.main("--check") == 0


def test_unknown_names_and_marks_that_begin_a_line_are_refused():
  with pytest.raises(ValueError, match=r"no number is called a.gain; there are a.mean"):
    recompute.filled("is <!--a.gain-->1<!--/-->", {"a.mean": "1"})
  with pytest.raises(ValueError, match="begins with a mark"):
    recompute.filled("<!--a.mean-->1<!--/--> is", {"a.mean": "1"})
