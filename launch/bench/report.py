"""The report of a benchmark, which is printed and stays in a file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_report(report: Mapping[str, Any], folder: str, name: str) -> None:
  """Writes a report as JSON, and prints it.

  Args:
    report: the measurements, with device and versions.
    folder: where to write it; made if it is missing.
    name: of the file.
  """
  text = json.dumps(report, indent=2)
  out = Path(folder)
  out.mkdir(parents=True, exist_ok=True)
  (out / name).write_text(text)
  print(text)
