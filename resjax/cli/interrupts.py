"""Ctrl-C while a command is still being imported."""

import os
import signal
from typing import NoReturn


def end_imports(*_: object) -> NoReturn:
  """Ends a command that Ctrl-C interrupts before `command.run` can handle it, with one line."""
  os.write(2, b"interrupted; the same command goes on where it can\n")
  os._exit(130)


def install() -> None:
  """Lets Ctrl-C end the process: libraries that are imported catch or replace KeyboardInterrupt."""
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_imports)
