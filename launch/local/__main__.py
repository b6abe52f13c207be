"""Runs several processes of one command on this machine, which find each other through JAX.

resjax local --num_processes=4 -- resjax train --config=tiny
"""

import functools
import os
import shlex
import sys

from absl import flags

from launch import flag_check, launcher_args
from launch.local import processes
from resjax.base import redaction
from resjax.cli import command

_NUM = flags.DEFINE_integer("num_processes", 2, "Number of processes.", lower_bound=1)
_PORT = flags.DEFINE_integer("port", 0, "Port of the coordinator; 0: a free one.", 0, 65535)
_DEVICES = flags.DEFINE_integer(
  "cpu_devices", 0, "Number of CPU devices of a process; 0: what XLA_FLAGS says.", lower_bound=0
)
_GRACE = flags.DEFINE_float(
  "grace_seconds", 30.0, "Time from one failure until the others are killed.", lower_bound=0.0
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands instead of running them.")


def main(words: list[str], command: list[str]) -> None:
  """Runs the command that follows `--`."""
  if words:
    raise ValueError(f"unexpected argument {words[0]!r}; the command follows --")
  launcher_args.require_command(command)
  port = _PORT.value or processes.free_port()
  if _DRY_RUN.value:
    flag_check.check(command)
    shown = redaction.words(command)
    for added in processes.environments(_NUM.value, port, _DEVICES.value, {}):
      print(shlex.join(["env", *(f"{key}={value}" for key, value in added.items()), *shown]))
    return
  environments = processes.environments(_NUM.value, port, _DEVICES.value, os.environ)
  sys.exit(processes.run(command, environments, _GRACE.value))


run = functools.partial(command.run, main, takes_words=True)

if __name__ == "__main__":
  run()
