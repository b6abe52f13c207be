"""The report of a benchmark, which is printed and stays in a file of --out, or in a page."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

_BEGIN, _END = "<!-- costs -->\n", "<!-- end of costs -->"

_OUT = flags.DEFINE_string("out", "runs/bench", "Folder of the results.")


def folder() -> Path:
  """Returns the folder of the results, which is made."""
  path = Path(_OUT.value)
  path.mkdir(parents=True, exist_ok=True)
  return path


def write_report(report: Mapping[str, Any], name: str) -> None:
  """Writes a report with device and versions to bench_NAME.json, and prints it."""
  text = json.dumps(report, indent=2)
  (folder() / f"bench_{name}.json").write_text(text)
  print(text)


def replace_table(page: str, text: str) -> str:
  """Returns a page with another table between its two marks.

  Raises:
    ValueError: the page has not exactly one of each mark.
  """
  counts = page.count(_BEGIN), page.count(_END)
  if counts != (1, 1):
    found = " and ".join(map(str, counts))
    raise ValueError(f"--page has {found} lines {_BEGIN.strip()!r} and {_END!r}; needed: one each")
  before, rest = page.split(_BEGIN)
  return f"{before}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}"
