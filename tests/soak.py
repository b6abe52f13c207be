"""A long run with many saves: memory, threads, descriptors and folders stay as they are.

  python -m tests.soak --steps=10000 --saves=400

Trains a tiny model in this process and prints the figures after each eighth of the run. It fails
when, after the first quarter, the process grew by more than 10 MB, or when something is left.
"""

import argparse
import dataclasses
import gc
import io
import os
import pathlib
import tempfile
from unittest import mock

from rich.console import Console

from resjax.base.processes import heaps
from resjax.train import experiment
from resjax.train.checkpoint.manager import Checkpoints
from resjax.train.checkpoint.reader import saved_steps
from resjax.train.loop import train
from tests.helpers import trained
from tests.helpers.runs import write_text

MOST_GROWTH = 10.0  # MB


@dataclasses.dataclass(frozen=True)
class Figures:
  """What the process holds after a step."""

  step: int
  megabytes: float
  threads: int
  descriptors: int
  folders: int

  def __str__(self) -> str:
    return (
      f"step {self.step:6}: {self.megabytes:7.1f} MB, {self.threads} threads, "
      f"{self.descriptors} descriptors, {self.folders} checkpoints"
    )


def figures(step: int, folder: pathlib.Path) -> Figures:
  gc.collect()
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
  held = [len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd")]
  megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
  return Figures(step, megabytes, *held, len(os.listdir(folder)))


def soak(root: pathlib.Path, steps: int, saves: int, say=print) -> list[Figures]:
  """Returns the figures after each eighth of a run, the first of them after a quarter.

  Args:
    root: an empty folder.
    steps: the number of steps.
    saves: how often the state is saved.
    say: is called with each of the figures.
  """
  write_text(root)
  c = trained.settings(root, root / "run", "standard", steps=steps, eval_every=0, log_every=50)
  c.mesh.update(data=-1, fsdp=1)
  c.model.update(num_layers=1, d_model=16, mlp_dim=16, num_heads=2, num_kv_heads=2)
  c.checkpoint.update(every=steps // saves, keep_last=2)
  found: list[Figures] = []
  save = Checkpoints.save

  def measured(self, step, state, batches):
    save(self, step, state, batches)
    if step % (steps // 8) < steps // saves and step >= steps // 4:
      self.wait()
      found.append(figures(step, root / "run" / "checkpoints"))
      say(found[-1])

  with mock.patch.object(Checkpoints, "save", measured):
    train(experiment.build(c), Console(file=io.StringIO()))
  assert saved_steps(root / "run" / "checkpoints") == [steps - steps // saves, steps]
  return found


def problems(found: list[Figures]) -> list[str]:
  """Returns a line for everything that grew."""
  first, last = found[0], found[-1]
  lines = []
  if last.megabytes - first.megabytes > MOST_GROWTH:
    lines.append(f"memory grew by {last.megabytes - first.megabytes:.1f} MB")
  for name in ("threads", "descriptors", "folders"):
    before, after = getattr(first, name), getattr(last, name)
    # Pools of threads grow to their bounds; nothing else may.
    if after > before + (2 if name == "threads" else 0):
      lines.append(f"{name} went from {before} to {after}")
  return lines


def main() -> None:
  """Runs the soak and exits with 1 if something grew."""
  parser = argparse.ArgumentParser(description="Watches what a long run holds.")
  parser.add_argument("--steps", type=int, default=10_000)
  parser.add_argument("--saves", type=int, default=400)
  flags = parser.parse_args()
  heaps.keep_few()  # as every command that trains does
  with tempfile.TemporaryDirectory() as folder:
    found = soak(pathlib.Path(folder), flags.steps, flags.saves)
  lines = problems(found)
  growth = found[-1].megabytes - found[0].megabytes
  print("; ".join(lines) or f"nothing is left; memory grew by {growth:.1f} MB")
  raise SystemExit(bool(lines))


if __name__ == "__main__":
  main()
