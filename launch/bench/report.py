"""The report of a benchmark, which is printed and stays in a file of --out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

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
