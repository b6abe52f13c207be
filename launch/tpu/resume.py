"""Keeps a command running on a slice that may be preempted at any time."""

import re
import subprocess
import time
from collections.abc import Callable, Sequence

from launch import steps
from launch.shell import STOPPED
from launch.steps import Step
from launch.tpu import commands, remote
from launch.tpu.commands import Resource

_TRIES = 3  # in a row: hosts may be preempted while they are set up, or not answer for a while
_LINE = re.compile(rf"{remote.STATUS} (\S+) (running|none|exit (\d+))")


def keep_running(
  resource: Resource,
  hosts: int,
  create: Callable[[], list[Step]],
  install: Callable[[], list[Step]],
  start: Callable[[], list[Step]],
  go_on: str,
  poll_seconds: float,
) -> None:
  """Creates, installs and starts what is missing, again after each preemption, until all is done.

  Args:
    resource: what the command runs on.
    hosts: how many there are.
    create: steps from nothing to hosts that are up.
    install: steps that bring the code to hosts that are up.
    start: steps that start the command.
    go_on: the command that goes on after a failure.
    poll_seconds: between looks.

  Raises:
    ValueError: the command failed on a host, or nothing could be started several times in a row.
  """
  tries = 0
  while True:
    state = steps.output(commands.state(resource)).strip()
    missing: list[Step] = []
    if state in ("FAILED", "SUSPENDED"):
      missing = [Step("delete what preemption left", commands.delete(resource))]
    if state in ("FAILED", "SUSPENDED", ""):
      missing += [*create(), *install(), *start()]
    try:
      if state == "ACTIVE":
        found = _status(resource, hosts)
        if is_done(resource, found):
          return
        if "running" not in found:
          missing = [*(install() if "none" in found else ()), *start()]
      print(f"{time.strftime('%H:%M:%S')} {resource.name}: {state or 'none'}", flush=True)
      steps.run(missing, go_on)
      tries = 0
    except (ValueError, subprocess.TimeoutExpired) as error:
      tries += 1
      if tries == _TRIES or isinstance(error, CommandFailed):
        raise
      print(f"try {tries} of {_TRIES}: {error}", flush=True)
    time.sleep(poll_seconds)


class CommandFailed(ValueError):
  """The command itself failed: running it again would not help."""


def is_done(resource: Resource, found: Sequence[str]) -> bool:
  """Whether the command has ended well on all hosts.

  Args:
    resource: what it runs on.
    found: of each host: running, none, or exit CODE.

  Raises:
    CommandFailed: it has ended otherwise on one of them.
  """
  fine = ("running", "none", "exit 0", f"exit {STOPPED}")
  failed = [state for state in found if state not in fine]
  if failed:
    raise CommandFailed(
      f"the command ended with {failed[0]} on {len(failed)} of {len(found)} hosts; see "
      f"{commands.again('logs', resource)} --worker=all; the hosts are still up, to end them: "
      f"{commands.again('delete', resource)}"
    )
  return all(state == "exit 0" for state in found)


def _status(resource: Resource, hosts: int) -> list[str]:
  """Of each host: running, none, or exit CODE."""
  text = steps.output(commands.ssh(resource, remote.status()))
  found = [line[2] for line in _LINE.finditer(text)]
  if len(found) != hosts:
    raise ValueError(f"{len(found)} of {hosts} hosts answered")
  return found
