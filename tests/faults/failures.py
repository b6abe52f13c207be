"""A plugin of pytest that writes down which tests failed; it is loaded in the checkouts of faults.

The environment variable FAULT_REPORT names the file. Each line of it is a JSON list: the kind,
`failed`, `import` or `root`; the test, the file or the folder of the library; and the reason.
"""

import json
import os
import sys
from pathlib import Path

_REPORT = os.environ["FAULT_REPORT"]  # of a test that fails all variables may be others


def _write(kind: str, name: str, reason: str) -> None:
  with open(_REPORT, "a", encoding="utf-8") as file:
    file.write(json.dumps([kind, name, reason]) + "\n")


def _reason(report) -> str:
  crash = getattr(report.longrepr, "reprcrash", None)
  text = crash.message if crash is not None else str(report.longrepr)
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return (lines[0] if crash is not None else lines[-1]) if lines else ""


def pytest_runtest_logreport(report):
  """Notes a test that fails, or whose fixtures do."""
  if report.failed:
    _write("failed", report.nodeid, _reason(report))


def pytest_collectreport(report):
  """Notes a file that cannot be imported."""
  if report.failed:
    _write("import", report.nodeid, _reason(report))


def pytest_sessionfinish():
  """Notes where the library came from, if a test imported it."""
  if "resjax" in sys.modules:
    _write("root", str(Path(sys.modules["resjax"].__file__).parents[1].resolve()), "")
