"""How to run it: the commands of resjax."""

import os
import signal
import sys
from typing import NoReturn


def end_imports(*_: object) -> NoReturn:
  """Ends a command that Ctrl-C interrupts before `launch.cli` can handle it, with one line."""
  os.write(2, b"interrupted; the same command goes on where it can\n")
  os._exit(130)


# Python writes -m there while it looks for the module of a command. Libraries that are imported
# catch KeyboardInterrupt or turn it into other errors.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
  signal.signal(signal.SIGINT, end_imports)
