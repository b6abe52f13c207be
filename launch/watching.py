"""Follows the loss of a run that goes on elsewhere, in its workdir on a bucket or a shared disk."""

import time
from collections.abc import Mapping

from launch.launcher_args import EXAMPLE
from resjax.base import locations
from resjax.base.records import METRICS_FILE, format_number, read_metrics

# What a line tells, with shorter names.
_SHOWN = {
  "train/loss": "loss",
  "train/bits_per_byte": "bits/byte",
  "time/tokens_per_second": "tokens/s",
  "validation/loss": "validation loss",
  "validation/bits_per_byte": "validation bits/byte",
}


def follow(workdir: str, lines: int, poll_seconds: float) -> None:
  """Prints the last records of a run, and those that are added, until Ctrl-C.

  Args:
    workdir: the run's folder.
    lines: how many earlier records are printed.
    poll_seconds: the time between two looks.

  Raises:
    ValueError: no folder is named, or its records cannot be read.
  """
  if not workdir:
    raise ValueError(f"--workdir is missing, the config.workdir of the run, as in: {EXAMPLE}")
  path = locations.path(workdir, "--workdir") / METRICS_FILE
  shown: int | None = None
  while True:
    found = [line(record) for record in read_metrics(path)] if path.exists() else []
    found = [text for text in found if text]
    if shown is None and not found:
      print(f"{path} is not there yet, or --workdir is another; Ctrl-C ends", flush=True)
    start = max(len(found) - lines, 0) if shown is None else min(shown, len(found))
    for text in found[start:]:
      print(text, flush=True)
    shown = len(found)
    time.sleep(poll_seconds)


def line(record: Mapping) -> str:
  """Returns a record as a line; empty if it has nothing that is shown."""
  known = [(short, record[name]) for name, short in _SHOWN.items() if record.get(name) is not None]
  values = [f"{short} {format_number(value)}" for short, value in known]
  return f"step {record['step']:,}: {', '.join(values)}" if values else ""
