"""Puts faults into copies of the checkout and says which tests tell them.

  python -m tests.faults                     # all of them, about half an hour
  python -m tests.faults --only "packing-*"  # some
  python -m tests.faults --check             # only whether each one can be applied

The faults stand in the lists tests/faults/*.toml. For each one the tests that its entry names are
run in a copy of the checkout, and where all of them pass, all tests of `make test`. A fault is
caught where a test fails that passes without the fault. The exit code is 1 if one escapes.
"""

import argparse
import concurrent.futures
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults import faults
from tests.faults.faults import Fault
from tests.faults.runs import Runner, Stopped, Verdict

_WIDTH = 80


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command and returns its exit code."""
  flags = _parse(argv)
  listed = faults.load()
  try:
    chosen = faults.choose(listed, flags.only)
  except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  if flags.list:
    print("\n".join(fault.name for fault in chosen))
    return 0
  wrong = faults.problems(chosen)
  for line in wrong:
    print(line, file=sys.stderr)
  if wrong or flags.check:
    print(f"{len(chosen)} faults, {len(wrong)} problems")
    return 1 if wrong else 0
  for number in (signal.SIGINT, signal.SIGTERM):  # what runs in the background ignores Ctrl-C
    signal.signal(number, signal.default_int_handler)
  options = {"limit": flags.limit, "workers": flags.workers, "slow": flags.slow}
  runner = Runner(faults.ROOT, **options, named_only=flags.named_only)
  try:
    verdicts = _judge_all(runner, chosen, flags.jobs)
  except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  if verdicts is None:
    print("interrupted", file=sys.stderr)
    return 130
  print(_summary(verdicts))
  if flags.table:
    earlier = flags.table.read_text(encoding="utf-8") if flags.table.exists() else ""
    flags.table.write_text(markdown(listed, verdicts, earlier), encoding="utf-8")
  return 0 if all(verdict.caught for verdict in verdicts) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="python -m tests.faults",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--only", action="append", default=[], metavar="PATTERN", help="names, * allowed; repeatable")
  add("--list", action="store_true", help="only print the names")
  add("--check", action="store_true", help="only check that every fault can be applied")
  add("--jobs", type=int, default=2, metavar="N", help="faults at a time (2)")
  add("--workers", type=int, default=2, metavar="N", help="processes of a run of all tests (2)")
  add("--named-only", action="store_true", help="run the tests that an entry names and no others")
  add("--slow", action="store_true", help="run slow tests too where the others all pass")
  add("--limit", type=float, default=1800, metavar="SECONDS", help="for one fault (1800)")
  add("--table", type=Path, metavar="FILE.md", help="write the table as Markdown")
  return parser.parse_args(argv)


def _judge_all(runner: Runner, chosen: Sequence[Fault], jobs: int) -> list[Verdict] | None:
  """Returns a verdict for each fault, in their order; None if Ctrl-C ended the command."""
  with concurrent.futures.ThreadPoolExecutor(jobs) as threads:
    tasks = [threads.submit(runner.judge, fault) for fault in chosen]
    try:
      for number, task in enumerate(concurrent.futures.as_completed(tasks), 1):
        print(f"[{number}/{len(tasks)}] {text(task.result())}", flush=True)
      return runner.confirmed([task.result() for task in tasks])
    except BaseException as error:
      for task in tasks:
        task.cancel()
      runner.stop()
      if isinstance(error, KeyboardInterrupt | Stopped):
        return None
      raise


def text(verdict: Verdict) -> str:
  """Returns a verdict in two or three lines of at most 80 characters."""
  head = f"{verdict.fault.name}: {verdict.status} ({verdict.seconds:.0f} s)"
  lines = [verdict.test or verdict.fault.breaks, verdict.reason]
  return "\n".join([head, *(f"    {line}"[:_WIDTH] for line in lines if line)])


def _summary(verdicts: Sequence[Verdict]) -> str:
  """Returns the table of the terminal: what was not caught in full, and the counts."""
  lines = []
  for verdict in verdicts:
    if not verdict.caught:
      lines.append(text(verdict))
  counts = {status: 0 for status in ("caught", "caught at import")}
  for verdict in verdicts:
    counts[verdict.status] = counts.get(verdict.status, 0) + 1
  slow = sum(verdict.caught and verdict.stage == "slow" for verdict in verdicts)
  found = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
  lines.append(f"{len(verdicts)} faults: {found}" + f", {slow} of them by slow tests" * (slow > 0))
  return "\n".join(lines)


def markdown(listed: Sequence[Fault], verdicts: Sequence[Verdict], earlier: str = "") -> str:
  """Returns the page of docs: the counts and a table with a row per fault.

  Args:
    listed: all faults, in the order of the rows.
    verdicts: those of some of them.
    earlier: the page as it was, for the last column of the others.
  """
  known = dict(re.findall(r"^\| (\S+/\S+) \|.*\| ([^|]*) \|$", earlier, re.MULTILINE))
  known |= {verdict.fault.name: _by(verdict) for verdict in verdicts}
  rows = [(fault, known.get(fault.name, "not tried")) for fault in listed]
  slow = sum(by.endswith("(slow)") for _, by in rows)
  fast = sum(by.startswith("`") for _, by in rows) - slow
  lines = [
    "# Faults and the tests that tell them",
    "",
    "Written by `python -m tests.faults --slow --table docs/faults.md`. Each fault is one changed",
    "line, listed in `tests/faults/*.toml`. It is applied to a copy of the checkout; the last",
    "column names a test that fails with it and passes without it. A run ends with the first such",
    "test, there may be others. With `--only` the rows of the other faults stay as they are.",
    "",
    f"{len(rows)} faults: {fast} are caught by `make test`, {slow} by the slow tests alone, "
    f"{len(rows) - fast - slow} by none.",
    "",
    "| fault | file | what it breaks | caught by |",
    "| --- | --- | --- | --- |",
  ]
  lines += [f"| {one.name} | `{one.file}` | {one.breaks} | {by} |" for one, by in rows]
  return "\n".join(lines) + "\n"


def _by(verdict: Verdict) -> str:
  """Returns the last column: the test without its parameters, or why there is none."""
  if not verdict.caught:
    return verdict.status
  test = verdict.test.partition("[")[0]
  return (
    f"`{test}`"
    + " at import" * ("import" in verdict.status)
    + " (slow)" * (verdict.stage == "slow")
  )


if __name__ == "__main__":
  sys.exit(main())
