"""A command that does what BODY says, where an error's traceback goes to FOLDER.

The body may use `errno` and `zlib`, and is in no file.
"""

import errno
import os
import zlib

from resjax.cli import command

if __name__ == "__main__":
  names = {"errno": errno, "zlib": zlib}
  exec(f"def main():\n  {os.environ['BODY']}", names)
  command.run(names["main"], folder=lambda: os.environ["FOLDER"])
