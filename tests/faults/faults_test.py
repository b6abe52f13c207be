"""Every fault can be applied, and the command tells what is caught from what is not."""

import dataclasses
import re
import subprocess
import threading
from pathlib import Path

import pytest

from tests.faults import __main__ as command
from tests.faults import faults, runs
from tests.faults.faults import Fault

FILES = {
  "setup.cfg": "[tool:pytest]\npython_files = *_test.py\npythonpath = .\nmarkers =\n  slow: slow\n",
  "double.py": "NAMES = {}\n\n\ndef double(x):\n  return 2 * x  # twice\n\n\ndef triple(x):\n"
  "  return 3 * x\n\n\ndef wait():\n  delay = 0\n  import time\n  time.sleep(delay)\n",
  "double_test.py": "import double\n\ndef test_double():\n  assert double.double(3) == 6\n",
  "wait_test.py": "import double\n\ndef test_wait():\n  double.wait()\n",
  "wrong_test.py": "import double\n\ndef test_wrong():\n  assert double.triple(1) == 4\n",
}


def test_every_fault_can_be_applied():
  assert faults.problems(faults.load()) == []


def test_the_page_has_the_test_that_catches_each():
  page = (faults.ROOT / "docs" / "faults.md").read_text()
  rows = re.findall(r"^\| (\S+/\S+) \|.*\| `tests/[^|]+ \|$", page, re.MULTILINE)
  assert rows == [one.name for one in faults.load()], "see the first lines of docs/faults.md"


def test_faults_are_spread_over_all_folders():
  files = [Path(fault.file) for fault in faults.load()]
  assert len(files) >= 60
  assert len({file for file in files if "combinators" in file.parts}) >= 14
  inside = {folder for file in files for folder in file.parents}
  folders = [path for top in ("resjax", "launch") for path in (faults.ROOT / top).glob("*/")]
  folders = [path.relative_to(faults.ROOT) for path in folders if list(path.glob("*.py"))]
  assert set(folders) <= inside


@pytest.fixture
def checkout(tmp_path):
  for name, text in FILES.items():
    (tmp_path / name).write_text(text)
  subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
  subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
  return tmp_path


def fault(old, new, *tests):
  return Fault("folder/name", "double.py", old, new, "It breaks.", tests)


DOUBLE = fault("return 2 * x", "return 2 + x", "double_test.py")
TRIPLE = fault("return 3 * x", "return 3 + x", "double_test.py")


def test_a_line_keeps_its_indentation_and_its_comment(checkout):
  changed = faults.apply(DOUBLE, checkout)
  assert "\n  return 2 + x  # twice\n" in changed
  assert (checkout / "double.py").read_text() == FILES["double.py"]


@pytest.mark.parametrize(
  ("old", "new", "says"),
  [
    ("return 4 * x", "return x", "0 times"),
    ("x", "y", "0 times"),
    ("return 2 * x", "return 2 *", "no Python"),
    ("return 2 * x", "return 2 * x", "two different"),
  ],
)
def test_faults_that_cannot_be_applied(checkout, old, new, says):
  (problem,) = faults.problems([fault(old, new, "double_test.py")], checkout)
  assert says in problem


def test_a_missing_test_file_is_a_problem(checkout):
  assert (
    "missing" in faults.problems([fault("return 2 * x", "return x", "no_test.py")], checkout)[0]
  )


def test_a_fault_is_caught_by_the_test_that_fails(checkout):
  verdict = runs.Runner(checkout, named_only=True).judge(DOUBLE)
  assert (verdict.status, verdict.test) == ("caught", "double_test.py::test_double")
  assert verdict.stage == "named" and "assert 5 == 6" in verdict.reason


def test_a_fault_that_no_test_tells_escapes(checkout):
  verdict = runs.Runner(checkout, named_only=True).judge(TRIPLE)
  assert verdict.status == "escaped" and not verdict.caught


def test_all_tests_follow_the_named_ones(checkout):
  elsewhere = dataclasses.replace(DOUBLE, tests=("wait_test.py",))
  (checkout / "wrong_test.py").unlink()
  verdict = runs.Runner(checkout, workers=0).judge(elsewhere)
  assert (verdict.status, verdict.stage) == ("caught", "fast")


@pytest.mark.slow
def test_slow_tests_come_last(checkout):
  marked = "import pytest\n" + FILES["double_test.py"].replace("def", "@pytest.mark.slow\ndef")
  (checkout / "double_test.py").write_text(marked)
  assert runs.Runner(checkout, named_only=True).judge(DOUBLE).status == "escaped"
  verdict = runs.Runner(checkout, named_only=True, slow=True).judge(DOUBLE)
  assert (verdict.status, verdict.stage) == ("caught", "slow")


@pytest.mark.slow
def test_a_test_that_fails_without_the_fault_tells_nothing(checkout):
  runner = runs.Runner(checkout, named_only=True)
  wrong = dataclasses.replace(TRIPLE, old="NAMES = {}", new="NAMES = []", tests=("wrong_test.py",))
  found = [runner.judge(one) for one in (wrong, DOUBLE)]
  assert [one.status for one in found] == ["caught", "caught"]
  assert [one.status for one in runner.confirmed(found)] == ["no verdict", "caught"]


def test_a_file_that_cannot_be_imported_is_named(checkout):
  verdict = runs.Runner(checkout, named_only=True).judge(
    fault("NAMES = {}", "NAMES = {}[0]", "double_test.py")
  )
  assert (verdict.status, verdict.test) == ("caught at import", "double_test.py")
  assert "KeyError" in verdict.reason


def test_tests_that_cannot_be_run_give_no_verdict(checkout):
  (checkout / "setup.cfg").write_text("[tool:pytest]\naddopts = --no-such-option\n")
  verdict = runs.Runner(checkout, named_only=True).judge(DOUBLE)
  assert verdict.status == "no verdict" and verdict.reason.startswith("exit code 4")


def test_a_fault_has_a_time_limit(checkout):
  sleeping = fault("delay = 0", "delay = 60", "wait_test.py")
  verdict = runs.Runner(checkout, limit=3, named_only=True).judge(sleeping)
  assert verdict.status == "time limit" and verdict.seconds < 30


def test_stopping_ends_what_runs(checkout):
  runner, ended = runs.Runner(checkout, named_only=True), []

  def judge():
    try:
      runner.judge(fault("delay = 0", "delay = 60", "wait_test.py"))
    except runs.Stopped:
      ended.append(True)

  thread = threading.Thread(target=judge)
  thread.start()
  thread.join(1)
  runner.stop()
  thread.join(10)
  assert ended


def test_names_and_patterns_choose_faults():
  listed = [
    dataclasses.replace(DOUBLE, name=name) for name in ("data/rows", "data/text", "nn/rows")
  ]
  names = lambda *patterns: [one.name for one in faults.choose(listed, patterns)]  # noqa: E731
  assert names() == ["data/rows", "data/text", "nn/rows"]
  assert names("rows") == ["data/rows", "nn/rows"] and names("data/*") == ["data/rows", "data/text"]
  with pytest.raises(ValueError, match="matches no fault"):
    names("other")


def test_what_is_printed_fits_80_columns():
  reason = "AssertionError: " + 100 * "x"
  verdict = runs.Verdict(DOUBLE, "caught", "a_test.py::test_" + 100 * "x", "named", reason)
  assert max(map(len, command.text(verdict).splitlines())) <= 80


def test_the_table_keeps_the_rows_of_faults_that_were_not_tried():
  other, gone = (dataclasses.replace(DOUBLE, name=f"folder/{name}") for name in ("other", "gone"))
  caught = runs.Verdict(DOUBLE, "caught", "a_test.py::test_a[1-x]", "named")
  page = command.markdown([DOUBLE, other, gone], [caught])
  assert "| folder/name | `double.py` | It breaks. | `a_test.py::test_a` |" in page.splitlines()
  assert "3 faults: 1 are caught by `make test`, 0 by the slow tests alone, 2 by none." in page
  slow = runs.Verdict(other, "caught", "b_test.py::test_b", "slow")
  page = command.markdown([DOUBLE, other], [slow], earlier=page)
  assert "2 faults: 1 are caught by `make test`, 1 by the slow tests alone, 0 by none." in page
  assert "test_a` |" in page and "`b_test.py::test_b` (slow) |" in page and "gone" not in page
