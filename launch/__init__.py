"""How to run it: on Cloud TPUs, clusters, several processes of a machine; `resjax NAME`."""

import sys

from resjax.cli import interrupts

if sys.argv[:1] == ["-m"]:  # Python writes that there while it looks for the module of a command
  interrupts.install()
