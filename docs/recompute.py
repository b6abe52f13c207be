"""Writes the numbers of pages that rest on committed JSON, or says which of them differ.

  python -m docs.recompute          # from the root of the repository: writes them
  python -m docs.recompute --check  # exits with 1 if one differs

On a page a number stands between `<!--SOURCE.NAME-->` and `<!--/-->`, where SOURCE is a key of
`SOURCES` and NAME one of what its function returns, or SOURCE is a file or a sweep of docs/findings
and NAME what docs/findings/statements.py says. A mark does not begin a line, which would make HTML
of the whole line, unless it stands alone there, above a table; behind a backtick it is none.
"""

import difflib
import functools
import pathlib
import re
import sys
from collections.abc import Callable, Mapping

from docs.comparisons import compiled_shapes, coverage
from docs.findings import (
  cuts_and_gates,
  depth,
  depth_retrieval,
  moe_order,
  real_models,
  statements,
)
from docs.systems import public

DOCS = pathlib.Path(__file__).parent
SWEEPS = ("from_start", "one_parent", "retrofit")  # of cuts and gates
SOURCES: Mapping[str, Callable[[], Mapping[str, str]]] = {
  "compiled_shapes": compiled_shapes.numbers,
  "coverage": coverage.numbers,
  "depth": depth.numbers,
  "depth_retrieval": depth_retrieval.numbers,
  "moe_order": moe_order.numbers,
  **{name: functools.partial(cuts_and_gates.numbers, name) for name in SWEEPS},
  "public": public.numbers,
  "real_models": real_models.numbers,
}
_MARKED = re.compile(r"(?<!`)(<!--(\w+)\.(\S+?)-->)(.*?)(<!--/-->)", re.DOTALL)


def numbers() -> dict[str, str]:
  """Returns all numbers by their names."""
  found = statements.numbers() | {source: made() for source, made in SOURCES.items()}
  return {f"{source}.{name}": text for source, made in found.items() for name, text in made.items()}


def filled(page: str, known: Mapping[str, str]) -> str:
  """Returns the text of a page with its numbers.

  Raises:
    ValueError: it marks a number that no source gives, or a mark begins a line of text.
  """
  if wrong := re.search(r"^<!--\S+?-->(?!\n).*", page, re.MULTILINE):
    raise ValueError(f"{wrong[0]!r} begins with a mark, which makes HTML of the line; move a word")

  def one(found: re.Match[str]) -> str:
    name = f"{found[2]}.{found[3]}"
    if name not in known:
      near = [other for other in known if other.startswith(f"{found[2]}.")] or [*SOURCES]
      raise ValueError(f"no number is called {name}; there are {', '.join(near)}")
    return f"{found[1]}{known[name]}{found[5]}"

  return _MARKED.sub(one, page)


def main(*arguments: str) -> int:
  """Writes or checks every page, and returns the exit status."""
  known, status = numbers(), 0
  for path in sorted(DOCS.rglob("*.md")):
    page = path.read_text()
    try:
      wanted = filled(page, known)
    except ValueError as error:
      raise ValueError(f"{path}: {error}") from None
    if wanted == page:
      continue
    lines = difflib.ndiff(page.splitlines(), wanted.splitlines())
    print(f"{path}:", *(line for line in lines if line.startswith("+ ")), sep="\n")
    if "--check" in arguments:
      status = 1
    else:
      path.write_text(wanted)
  return status


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
