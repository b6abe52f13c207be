"""Gives hostile input to every command and says what became of it.

  python -m tests.fuzz --cases=1000               # about ten minutes on one core
  python -m tests.fuzz --out=docs/fuzz.md         # the same, and the table there is replaced
  python -m tests.fuzz --kind=hf_config --cases=50
  python -m tests.fuzz --kind=hf_config --cases=50 --case=7   # one of them again, with its output

A case is good if its command ends with one line that names the mistake, or accepts the input
rightly; cases.py has the rules. The exit code is 1 if fewer than 99 % of the cases are good, or if
one hangs, crashes, takes too much memory, touches a victim or is silently wrong.
"""

import argparse
import collections
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import kinds
from tests.fuzz.cases import ACCEPTED, CLEAN
from tests.fuzz.runner import Judged, Runner

_ENOUGH = 0.99  # share of good cases
_NEVER = ("hang", "signal", "memory", "changed a victim", "silently wrong")


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command and returns its exit code."""
  flags = _parse(argv)
  started = time.monotonic()
  judged: list[tuple[int, Judged]] = []
  with Runner() as runner:
    chosen = kinds.generate(flags.cases, flags.kind, flags.seed, runner.original)
    print(f"{time.monotonic() - started:.0f} s for valid files", flush=True)
    for found in chosen.values():
      for number, case in enumerate(found):
        if flags.case in (None, number):
          one = runner.run(case)
          judged.append((number, one))
          if not one.verdict.good or flags.case is not None:
            print(_text(number, len(found), one, flags.seed), flush=True)
          if flags.case is not None:
            print(one.done.out.decode(errors="replace"), one.done.err.decode(errors="replace"))
  results = [one for _, one in judged]
  print(f"\n{markdown(results)}\n\n{time.monotonic() - started:.0f} s")
  if flags.out:
    _write_table(flags.out, markdown(results))
  if flags.failures:
    text = _failures(judged, chosen, flags.seed)
    flags.failures.write_text(text, encoding="utf-8", errors="backslashreplace")
  return 0 if passes(results) else 1


def passes(results: Sequence[Judged]) -> bool:
  """Returns whether enough cases are good, and none is of those that may never be."""
  words = [one.verdict.word for one in results]
  good = sum(one.verdict.good for one in results)
  return good >= _ENOUGH * len(results) and not {*_NEVER} & {*words}


def markdown(results: Sequence[Judged]) -> str:
  """Returns the table of verdicts by kind."""
  counts: dict[str, collections.Counter] = {}
  for one in results:
    counts.setdefault(one.case.kind, collections.Counter())[one.verdict.word] += 1
  bad = sorted({word for count in counts.values() for word in count} - {CLEAN, ACCEPTED})
  columns = [CLEAN, ACCEPTED, *_NEVER, *(word for word in bad if word not in _NEVER)]
  counts["all"] = sum(counts.values(), collections.Counter())
  lines = [
    f"| kind | cases | good | {' | '.join(columns)} |",
    f"|---|{'---:|' * (len(columns) + 2)}",
  ]
  for kind, count in counts.items():
    good = (count[CLEAN] + count[ACCEPTED]) / max(count.total(), 1)
    cells = [str(count[word]) for word in columns]
    lines.append(f"| {kind} | {count.total()} | {good:.1%} | {' | '.join(cells)} |")
  return "\n".join(lines)


def _write_table(path: Path, table: str) -> None:
  """Writes a table to a file, or in place of the table with the same first columns that it has."""
  old = path.read_text(encoding="utf-8") if path.exists() else ""
  found = re.search(r"^\| kind \| cases \|.*\n(\|.*\n)*", old, re.MULTILINE)
  new = old[: found.start()] + table + "\n" + old[found.end() :] if found else table + "\n"
  path.write_text(new, encoding="utf-8")


def _text(number: int, count: int, one: Judged, seed: int) -> str:
  again = f"--kind={one.case.kind} --cases={count} --seed={seed} --case={number}"
  said = one.verdict.detail.replace("\n", " ")[:500]
  return f"{one.verdict.word}: {one.case.what}\n  {again}\n  {said}"


def _failures(judged: Sequence[tuple[int, Judged]], chosen: dict, seed: int) -> str:
  """Returns the failures in Markdown, those that look the same only once."""
  groups: dict[tuple[str, str], list[tuple[int, Judged]]] = {}
  for number, one in judged:
    if not one.verdict.good:
      groups.setdefault((one.verdict.word, _shape(one)), []).append((number, one))
  lines = []
  for (word, _), found in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
    number, one = found[0]
    count = len(chosen[one.case.kind])
    lines += [
      f"## {word}: {one.case.kind}, {len(found)} cases",
      f"- {one.verdict.detail[:600]}",
      f"- first: {one.case.what[:200]}",
      f"- again: python -m tests.fuzz --kind={one.case.kind} --cases={count} --seed={seed} "
      f"--case={number}",
      f"- command: resjax {one.case.command} {json.dumps(one.case.arguments)[-400:]}",
      *[f"- also: {other.case.kind}: {other.case.what[:120]}" for _, other in found[1:6]],
      "",
    ]
  return "\n".join(lines)


def _shape(one: Judged) -> str:
  """Returns what failures with one cause have in common."""
  detail = one.verdict.detail
  if one.verdict.word == "traceback":
    where, _, error = detail.partition(": ")
    return f"{where} {error.split(':')[0]}"
  return f"{one.case.kind} {''.join(c for c in detail if c.isalpha() or c == ' ')[:60]}"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="python -m tests.fuzz",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--cases", type=int, default=1000, metavar="N", help="how many are drawn (1000)")
  add("--kind", action="append", choices=list(kinds.ALL), help="kind of input; repeatable")
  add("--seed", type=int, default=0, metavar="S", help="decides the cases (0)")
  add("--case", type=int, metavar="N", help="only this one, with what it printed")
  add("--out", type=Path, metavar="FILE.md", help="write the table as Markdown")
  add("--failures", type=Path, metavar="FILE.md", help="write the failures as Markdown")
  return parser.parse_args(argv)


if __name__ == "__main__":
  sys.exit(main())
