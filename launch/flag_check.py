"""Checks the flags of the command that a launcher will run, with that command's own parser."""

import subprocess
import sys
from collections.abc import Sequence

from launch import launcher_args

_SECONDS = 300  # a config file may take its time


def check(command: Sequence[str]) -> None:
  """Parses the flags of a command of resjax in a process of its own, which does nothing else.

  Its config file is run for that, as it is Python. Other commands are not checked.

  Raises:
    ValueError: a flag or setting is not known, or has a wrong value; with the message of the
      command.
  """
  found = launcher_args.resjax_command(command)
  if found is None:
    return
  name, arguments = found
  line = [sys.executable, "-m", "resjax", name, "--check_flags", *arguments]
  try:
    done = subprocess.run(
      line, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
    )
  except subprocess.TimeoutExpired:
    raise ValueError(f"resjax {name}: its config takes more than {_SECONDS} seconds") from None
  if done.returncode:
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    said = [one.removeprefix("error: ") for one in lines if one.startswith("error: ")] or lines
    raise ValueError(f"resjax {name}: {said[-1] if said else f'exit code {done.returncode}'}")
