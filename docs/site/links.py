"""Links of pages to what lies outside docs/, and pages of the repository that the site has too."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COPIES = DOCS / "generated" / "repository"
_LINK = re.compile(r"\[([^][]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def copied_pages():
  """Returns the Markdown pages outside docs/ that belong to the site."""
  tops = (ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))
  return [*tops, *sorted((ROOT / "launch").glob("*/README.md"))]


def copy_pages(app):
  """Copies these pages to where Sphinx finds them."""
  for page in copied_pages():
    copy = COPIES / page.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(page.read_text())


def rewrite(app, docname, source):
  """Makes the links of a page fit the site, whose first page is README.md.

  Args:
    app: Sphinx's application.
    docname: the page.
    source: a list with its text, which is changed in place.
  """
  page = DOCS / docname
  folder = ROOT / page.relative_to(COPIES).parent if page.is_relative_to(COPIES) else page.parent
  source[0] = _rewritten(source[0], folder)
  if docname == "index":
    source[0] = _rewritten((ROOT / "README.md").read_text(), ROOT) + source[0]


def _rewritten(text, folder):
  def target(link):
    path = Path(os.path.normpath(folder / link[2]))
    if path.is_dir():  # which has no page
      return f"`{path.relative_to(ROOT)}/`"
    return f"[{link[1]}]({_place(path)}{link[3] or ''})"

  return _LINK.sub(target, text)


def _place(path):
  if path == ROOT / "README.md":
    path = DOCS / "index.md"
  elif path in copied_pages():
    path = COPIES / path.relative_to(ROOT)
  return "/" + os.path.relpath(path, DOCS)
