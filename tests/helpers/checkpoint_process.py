"""One of several processes that save and restore together.

  python -m tests.helpers.checkpoint_process FOLDER PORT INDEX COUNT START LAST SPOILED

Goes on from the checkpoint of step START, which must be the newest good one, to step LAST, saving
by time, with clocks that run differently; prints what it was told, and after which steps it saved.
The checkpoint of step SPOILED loses a file before it is opened.
"""

import json
import sys

import jax

from resjax.base import processes
from resjax.base.processes import agreement
from resjax.train.checkpoint import opening
from resjax.train.checkpoint.schedule import SaveSchedule
from tests.helpers.checkpoints import assert_restores, numbers, opened, settings, small_state


def spoil(step: int) -> None:
  check = opening.check

  def spoiling(checkpoint):
    if checkpoint.name == str(step):
      (checkpoint / "params" / "manifest.ocdbt").unlink()
    check(checkpoint)

  opening.check = spoiling


def main(
  folder: str, port: str, index: int, count: int, expected: int, last: int, spoiled: int
) -> None:
  jax.distributed.initialize(f"localhost:{port}", count, index)
  agreement.joined()
  spoil(spoiled)
  seconds = [0.0]
  with opened(folder, every=0, minutes=1.0) as checkpoints:
    checkpoints.schedule = SaveSchedule(settings(every=0, minutes=1.0), lambda: seconds[0])
    start = expected
    if start:
      assert_restores(checkpoints, start)
    batches, saved = numbers(), []
    for step in range(start + 1, last + 1):
      seconds[0] += 20.0 if index == 0 else 1e-3
      if checkpoints.due(step):
        batches.set_state({"next_index": step})
        checkpoints.save(step, small_state(step), batches)
        saved.append(step)
  print(json.dumps({"said": checkpoints.said, "saved": saved}), flush=True)
  processes.shutdown()


if __name__ == "__main__":
  main(*sys.argv[1:3], *map(int, sys.argv[3:]))
