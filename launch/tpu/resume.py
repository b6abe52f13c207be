"""Keeps a command running on slices that may be preempted at any time."""

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from launch import shell_steps
from launch.shell import STOPPED
from launch.shell_steps import Step
from launch.tpu import commands, remote
from launch.tpu.commands import Resource

# How often each may fail in a row: hosts may be preempted while they are set up, and the network
# may be away for a while.
_LIMITS = {"setting up": 3, "looking": 60}
_LINE = re.compile(rf"{remote.STATUS} (\S+) (running|none|exit (\d+))")


class Setup(NamedTuple):
  """The steps that create the hosts, bring the code to them, and start the command."""

  create: list[Step]
  install: list[Step]
  start: list[Step]


def keep_running(
  resource: Resource, hosts: int, setup: Setup, go_on: str, poll_seconds: float
) -> None:
  """Runs a command until it has ended well, creating its hosts again after each preemption.

  Args:
    resource: what the command runs on.
    hosts: the number of hosts.
    setup: the steps from nothing to a running command.
    go_on: the command line that the user can go on with after a failure.
    poll_seconds: the time between looks at the state.

  Raises:
    ValueError: the command failed on a host, or nothing could be started several times in a row.
  """
  failures = dict.fromkeys(_LIMITS, 0)
  looked = False
  while True:
    doing = "looking"
    try:
      missing = _missing(resource, hosts, setup)
      if missing is None:
        return
      looked, doing = True, "setting up"
      shell_steps.run(missing, go_on)
      failures = dict.fromkeys(_LIMITS, 0)
    except CommandFailed:
      raise
    except ValueError as error:
      failures[doing] += 1
      if failures[doing] == _LIMITS[doing] or not looked:
        raise
      print(f"{doing}, try {failures[doing]} of {_LIMITS[doing]}: {error}", flush=True)
    time.sleep(poll_seconds)


def _missing(resource: Resource, hosts: int, setup: Setup) -> list[Step] | None:
  """Returns the steps that are missing until the command runs, or None when it is done."""
  state = shell_steps.output(commands.state(resource)).strip()
  print(f"{time.strftime('%H:%M:%S')} {resource.name}: {state or 'none'}", flush=True)
  if state in ("FAILED", "SUSPENDED", ""):
    delete = [Step("delete what preemption left", commands.delete(resource))]
    return [*(delete if state else ()), *setup.create, *setup.install, *setup.start]
  if state != "ACTIVE":  # the hosts come up or go down
    return []
  found = _status(resource, hosts)
  if is_done(resource, found):
    return None
  if "running" in found:
    return []
  return [*(setup.install if "none" in found else ()), *setup.start]


class CommandFailed(ValueError):
  """The command itself has failed, so that running it again would not help."""


def is_done(resource: Resource, found: Sequence[str]) -> bool:
  """Returns whether the command has ended well on all hosts.

  Args:
    resource: the hosts of the command.
    found: the state of each host: `running`, `none` or `exit CODE`.

  Raises:
    CommandFailed: the command has failed on a host.
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
  """Returns the state of each host: `running`, `none` or `exit CODE`."""
  text = shell_steps.output(commands.ssh(resource, remote.status()))
  found = [line[2] for line in _LINE.finditer(text)]
  if len(found) != hosts:
    raise ValueError(f"{len(found)} of {hosts} hosts answered")
  return found
