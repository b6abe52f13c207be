"""Measures arms in turn, in as few processes as they leave alive.

Python and a GPU take 10 to 40 s to start, so that arms share a process. But a kernel that fails may
abort it, spoil its CUDA context, or never end: such an arm costs itself, and the next process goes
on behind it. All that the processes know of each other is the report, which is replaced at once
whenever an arm begins or ends, and so is complete whenever they are stopped:

  {"about": {...}, "arms": {NAME: {"status": ..., "seconds": ..., and what was measured}}}
"""

import dataclasses
import json
import os
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.bench import arms

RUNNING, STOPPED, NO_TIME = "running", "stopped", "no time left"
START = 120.0  # seconds that Python and the device may take to start, and to free what an arm held
_PAUSE = 0.1

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Arm:
  """One measurement with a deadline.

  Attributes:
    name: its name, which no other arm has.
    measure: returns the measurements, and as `status` why they are wrong, if they are.
    deadline: seconds.
  """

  name: str
  measure: Callable[[], Mapping[str, Any]]
  deadline: float


def read(report: Path) -> dict[str, Any]:
  """Returns the report so far, without arms if there is no file."""
  return json.loads(report.read_text()) if report.exists() else {"about": {}, "arms": {}}


def supervise(
  chosen: Sequence[Arm],
  command: Sequence[str],
  report: Path,
  log: Path,
  budget: float,
  environment: Mapping[str, str],
  on_result: Callable[[str, Record], None],
) -> None:
  """Measures the arms that the report does not have as `ok`, until the time is over.

  Args:
    chosen: the arms, the most important first.
    command: of a process that calls `work` for these arms and this report.
    report: the JSON file.
    log: the file that all processes print to.
    budget: seconds of all of them.
    environment: variables of the processes.
    on_result: is called with name and record of every arm that has ended.

  Raises:
    ValueError: a process ended before it began an arm.
  """
  end = time.monotonic() + budget
  content = read(report)
  for arm in chosen:
    if content["arms"].get(arm.name, {}).get("status") != arms.OK:
      content["arms"].pop(arm.name, None)  # of an earlier call
  report.parent.mkdir(parents=True, exist_ok=True)
  _write(report, content)
  while (left := [arm for arm in chosen if arm.name not in content["arms"]]) and (
    time.monotonic() < end
  ):
    with log.open("a") as output:
      start = output.tell()
      process = subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
      )
    status = STOPPED
    try:
      status = _watch(process, left, report, end, on_result) or arms.ended(
        process.wait(), log, start
      )
    finally:
      process.kill()
      process.wait()
      content = read(report)
      begun = [arm.name for arm in left if arm.name in content["arms"]]
      for name in begun:
        record = content["arms"][name]
        if record["status"] == RUNNING:
          record |= {"status": status, "seconds": round(time.time() - record.pop("began"), 2)}
          _write(report, content)
          on_result(name, record)
    if not begun and status != NO_TIME:
      raise ValueError(f"the process of the arms began none: {status}; see {log}")


def _watch(
  process: subprocess.Popen,
  left: Sequence[Arm],
  report: Path,
  end: float,
  on_result: Callable[[str, Record], None],
) -> str | None:
  """Waits for the last arm, or the end of somebody's time; returns None if the process ended."""
  deadlines = {arm.name: arm.deadline for arm in left}
  at, since, reported = None, time.monotonic(), set[str]()
  while True:
    code, now = process.poll(), time.monotonic()
    found = {name: record for name, record in read(report)["arms"].items() if name in deadlines}
    running = next((name for name in found if found[name]["status"] == RUNNING), None)
    for name in found:
      if name != running and name not in reported:
        reported.add(name)
        on_result(name, found[name])
    if len(reported) == len(left):
      return arms.OK
    if code is not None:
      return None
    if now >= end:
      return NO_TIME
    if running != at:
      at, since = running, now
    limit = START if at is None else deadlines[at]
    if now - since > limit:
      return f"over its deadline of {limit:.0f} s"
    time.sleep(_PAUSE)


def work(
  chosen: Sequence[Arm], report: Path, about: Mapping[str, Any], settle: Callable[[], bool]
) -> None:
  """Measures in this process the arms that the report does not have yet.

  Args:
    chosen: the arms, in order.
    report: the JSON file.
    about: device and versions.
    settle: frees the memory of an arm, and returns whether the device still answers. This process
      ends where it does not.

  Raises:
    ValueError: the report has measurements of another device or version.
  """
  threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
  content = read(report)
  if content["about"] not in ({}, about):
    raise ValueError(
      f"{report} is of {content['about']}, and this is {about}: choose another --out"
    )
  content["about"] = dict(about)
  for arm in chosen:
    if arm.name in content["arms"]:
      continue
    content["arms"][arm.name] = {"status": RUNNING, "began": time.time()}
    _write(report, content)
    print(f"== {arm.name}", flush=True)
    begin = time.monotonic()
    try:
      # A number that JSON does not have becomes a word.
      record = json.loads(json.dumps({"status": arms.OK, **arm.measure()}), parse_constant=str)
    except Exception as problem:
      traceback.print_exc()
      record = {"status": f"{type(problem).__name__}: {problem}"[:1000]}
    record["seconds"] = round(time.monotonic() - begin, 2)
    content["arms"][arm.name] = record
    _write(report, content)
    if not settle():
      os._exit(1)  # what a device in this state does at an orderly end is not known


def _end_with(parent: int) -> None:
  """Ends this process soon after its parent, which may have been killed."""
  while os.getppid() == parent:
    time.sleep(_PAUSE)
  os._exit(1)


def _write(report: Path, content: Mapping[str, Any]) -> None:
  draft = report.with_suffix(".draft")
  draft.write_text(json.dumps(content, indent=1))
  draft.replace(report)
