"""What all commands share, seen from outside."""

import subprocess
import sys

from tests.helpers.stand_ins import ROOT

# The first collection interrupts itself, where Python can only report what a callback raises.
INTERRUPTED_WHERE_NOTHING_CAN_BE_RAISED = """
import gc, signal, time
from launch import cli

def interrupt(phase, info):
  gc.callbacks.remove(interrupt)
  signal.raise_signal(signal.SIGINT)

def main():
  gc.callbacks.append(interrupt)
  gc.collect()
  time.sleep(30)

cli.run(main)
"""


def test_a_ctrl_c_that_comes_in_a_callback_of_the_collector_is_not_lost():
  command = [sys.executable, "-c", INTERRUPTED_WHERE_NOTHING_CAN_BE_RAISED]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=25)
  assert done.returncode == 130, done.stderr
  assert done.stderr.strip() == "interrupted; the same command goes on where it can"
