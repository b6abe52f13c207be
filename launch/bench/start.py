"""Times how long a user waits: to the first step of a run, and for the page of a finished one.

  resjax bench start                        (this checkout)
  resjax bench start --other=../before      (another checkout of the repository, in turn)

Each sample is a whole process of `resjax train --config=tiny`, from its start until the run has
recorded a step: with nothing there, then with the data, then with the compiled programs of the run
before, too. `analyze` is all of `resjax analyze` for such a run of one
step. Seconds are those of the wall and those of all cores together, which other programs disturb
less. The command prints the medians as one JSON object, and writes it to --out.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from launch.bench import whole_process
from launch.bench.report import write_report
from resjax.base.records import METRICS_FILE, read_metrics
from resjax.cli import command

_OTHER = flags.DEFINE_string("other", "", "Folder of another checkout, whose turn comes too.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Samples of each kind.", lower_bound=1)
_CONFIG = flags.DEFINE_string("config", "tiny", "The config that is trained.")
_LIMIT = flags.DEFINE_integer("limit", 600, "Seconds after which a process is given up.")

_HERE = Path(__file__).parents[2]


def main() -> None:
  """Prints the medians of all kinds, for each checkout."""
  checkouts = {"here": _HERE} | ({"other": Path(_OTHER.value).resolve()} if _OTHER.value else {})
  for folder in checkouts.values():
    if not (folder / "resjax").is_dir():
      raise ValueError(f"--other={folder} is no checkout of resjax: it has no folder resjax")
  found: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in checkouts}
  for _ in range(_REPEATS.value):
    for name, checkout in checkouts.items():
      with tempfile.TemporaryDirectory() as place:
        for kind, seconds in _samples(checkout, Path(place)).items():
          found[name].setdefault(kind, []).append(seconds)
  report = {
    "flags": {f.name: f.value for f in (_CONFIG, _REPEATS)},
    "cores": os.cpu_count(),
    "seconds": {name: _medians(kinds, 0) for name, kinds in found.items()},
    "seconds of all cores": {name: _medians(kinds, 1) for name, kinds in found.items()},
  }
  write_report(report, "start")


def _medians(kinds: Mapping[str, Sequence[tuple[float, float]]], which: int) -> dict[str, float]:
  return {kind: statistics.median(pair[which] for pair in pairs) for kind, pairs in kinds.items()}


def _samples(checkout: Path, place: Path) -> dict[str, tuple[float, float]]:
  """Returns seconds of the wall and of all cores of one process of each kind.

  Args:
    checkout: the folder of the repository.
    place: an empty folder for data, compiled programs and runs.
  """
  found = {}
  for kind, programs in (("nothing there", "first"), ("data", "second"), ("warm", "second")):
    run = place / f"run {kind}"
    found[kind] = _run(checkout, place / programs, _train(place, run), run)
  # A run of one step, whose last state is saved.
  one = place / "one"
  _run(checkout, place / "second", [*_train(place, one), "--config.train.steps=1"], None)
  words = ["analyze", f"--checkpoint={one}"]
  found["analyze"] = _run(checkout, place / "second", words, None)
  return found


def _train(place: Path, run: Path) -> list[str]:
  return ["train", f"--config={_CONFIG.value}", f"--config.data.root={place}/data",
          f"--config.workdir={run}", "--config.train.log_every=1"]  # fmt: skip


def _run(
  checkout: Path, programs: Path, words: Sequence[str], run: Path | None
) -> tuple[float, float]:
  """Runs a command to its end, or until a run has recorded a step.

  Returns:
    Seconds of the wall, and of all cores together.

  Raises:
    ValueError: the command fails, or takes too long.
  """
  variables = {
    "PYTHONPATH": str(checkout), "JAX_COMPILATION_CACHE_DIR": str(programs),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
  }  # fmt: skip
  used = whole_process.run(
    [sys.executable, "-m", "resjax", *words], checkout, variables, _LIMIT.value,
    lambda: run is not None and _has_begun(run),
  )  # fmt: skip
  return used.seconds, used.core_seconds


def _has_begun(run: Path) -> bool:
  """Returns whether a run has recorded a step, which every checkout does alike."""
  path = run / METRICS_FILE
  return path.exists() and any(row["step"] > 0 for row in read_metrics(path))


if __name__ == "__main__":
  command.run(main)
