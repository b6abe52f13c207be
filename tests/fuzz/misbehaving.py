"""A command that does what no command may do; tests of the harness run it."""

import os
import signal
import sys
import time

match sys.argv[1]:
  case "hang":
    time.sleep(600)
  case "memory":
    held = []
    while True:
      held.append(b"x" * (16 << 20))
  case "signal":
    os.kill(os.getpid(), signal.SIGSEGV)
  case "raise":
    raise TypeError("two\nlines")
  case "child":
    if os.fork() == 0:
      time.sleep(600)
    print("left behind")
  case _:
    sys.exit(f"error: {sys.argv[1]}")
