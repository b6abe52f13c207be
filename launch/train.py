"""Trains what a config describes: `python -m launch.train` in a checkout is `resjax train`."""

from resjax.cli.commands import run

if __name__ == "__main__":
  run()
