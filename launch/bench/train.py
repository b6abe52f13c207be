"""Measures the speed of a training run, and whether a killed run ends in the same result.

  resjax bench train                (1.35B parameters, one GPU of 80 GB or more)
  resjax bench train --steps=12 -- --config=tiny     (for trying it out)

The arguments that follow `--` go to resjax train. A first run of `--steps` steps measures
model FLOP utilisation, tokens per second, and the shares of a step's time that go to waiting for
data and to metrics and progress; they are medians over the records after its first third. With
--steps=0 there is no such run. Then one run of 16 steps goes through, and another one is killed
with SIGKILL after step 10 and started again, both with XLA's deterministic operations. Every loss
and every array of their last checkpoints must have the same bits, otherwise the exit code is 1. The
command prints one JSON object, and writes it to --out, the part about the first run also after it.

Checkpoints are deleted once they have been compared: at most two are on the disk at a time (32 GB
with 1.35B parameters), and the run to be killed does not begin where there is less room.
"""

import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from resjax.base.records import METRICS_FILE, read_metrics
from resjax.cli import command
from resjax.train.checkpoint import reader
from resjax.train.runs import workdir

_STEPS = flags.DEFINE_integer(
  "steps", 60, "Number of steps of the timed run: 0, or 6 and more.", lower_bound=0
)
_OUT = flags.DEFINE_string("out", "runs/bench", "Folder to write bench_train.json and the runs to.")

DEFAULT = (
  "--config=llama_1p3b:standard",
  "--config.mesh.fsdp=1",
  "--config.train.batch_size=32",
  "--config.train.microbatches=4",
  "--config.data.corpora.web.source=python-stdlib",
  "--config.data.corpora.web.format=auto",
)
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
SHORT, KILLED_AFTER, SAVE_EVERY = 16, 10, 4  # steps

Records = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Options:
  """How a run of resjax train is started.

  Attributes:
    arguments: the arguments of resjax train.
    steps: the number of steps.
    save_every: the number of steps between checkpoints; 0 for none.
    xla_flags: the flags of XLA; empty: the flags of this process.
  """

  arguments: Sequence[str]
  steps: int
  save_every: int
  xla_flags: str = ""


def main(words: list[str], after: list[str]) -> None:
  """Prints the results of the runs.

  Raises:
    ValueError: a run has failed, or the killed run has another result.
  """
  if words:
    raise ValueError(f"unexpected argument {words[0]!r}; those of resjax train come after --")
  if 0 < _STEPS.value < 6:
    raise ValueError(f"--steps={_STEPS.value}: the timed run has 6 steps or more, or none with 0")
  arguments = after or list(DEFAULT)
  out = Path(_OUT.value)
  folder = out / "bench_train"
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  report: dict[str, Any] = {"arguments": arguments, "steps": _STEPS.value}
  if _STEPS.value:
    timed = _train(folder / "timed", Options(arguments, steps=_STEPS.value, save_every=0))
    report["timed"] = _speed(timed)
    _write(out, report, folder / "timed")
    shutil.rmtree(folder / "timed" / "checkpoints")
  report["killed"] = _killed(folder, arguments)
  print(_write(out, report, folder / "straight"))
  if not all(report["killed"][key] for key in ("same_losses", "same_state")):
    raise ValueError(f"the killed run differs from the one that went through: {folder}")


def _write(out: Path, report: dict, run: Path) -> str:
  """Writes the report, with what a run knows of its environment, and returns its text."""
  environment = dataclasses.asdict(workdir.read(run).environment)
  text = json.dumps(report | {"environment": environment}, indent=2)
  (out / "bench_train.json").write_text(text)
  return text


def _speed(records: Records) -> dict[str, float | None]:
  """Returns medians over the steps after the first third; shares are shares of a step's time."""
  steps = [record for record in records if "time/tokens_per_second" in record]
  steps = [record for record in steps if record["step"] > _STEPS.value // 3]
  names = ("tokens_per_second", "mfu", "input", "dispatch", "device", "input_share")
  found: dict[str, float | None] = {}
  for name in names:
    values = [record[f"time/{name}"] for record in steps]
    found[name] = None if None in values else statistics.median(values)
  first, last = steps[0], steps[-1]
  logged, trained = (
    sum(last[f"goodput/{row}"] - first[f"goodput/{row}"] for row in rows)
    for rows in (("log",), ("log", "step", "input"))
  )
  return found | {"log_share": logged / trained}


def _killed(folder: Path, arguments: Sequence[str]) -> dict:
  """Compares a run that is killed and started again with one that goes through."""
  xla_flags = f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip()
  options = Options(arguments, SHORT, SAVE_EVERY, xla_flags)
  # Saves do not change the bits; the run that goes through saves its last state alone.
  straight = _train(folder / "straight", dataclasses.replace(options, save_every=0))
  want, size = _last_state(folder / "straight")
  check_room(folder, size)
  killed = folder / "killed"
  process = _start(killed, options)
  while (seen := _last_step(killed)) < KILLED_AFTER and process.poll() is None:
    time.sleep(0.01)
  if process.poll() is not None:
    raise ValueError(f"the run to be killed ended by itself, with exit code {process.returncode}")
  process.kill()
  process.wait()
  again = _train(killed, options)
  got, _ = _last_state(killed)
  return {
    "xla_flags": xla_flags,
    "killed_after_step": seen,
    "arrays": len(want),
    "same_losses": _losses(again) == _losses(straight),
    "same_state": want == got,
  }


def _last_state(folder: Path) -> tuple[Mapping[str, Any], int]:
  """Returns checksums and bytes of the newest checkpoint of a run, and deletes all that it has."""
  checkpoints = folder / "checkpoints"
  newest = reader.newest(checkpoints)
  if newest is None:
    raise ValueError(f"{checkpoints} has no checkpoint")
  found = reader.checksums_of(newest)
  size = sum(path.stat().st_size for path in Path(newest).rglob("*") if path.is_file())
  shutil.rmtree(checkpoints)
  return found, size


def check_room(folder: Path, checkpoint_bytes: int) -> None:
  """Raises ValueError if the disk of a folder has no room for two checkpoints."""
  needed, free = 2 * checkpoint_bytes, shutil.disk_usage(folder).free
  if free < needed:
    raise ValueError(
      f"{folder} has {free / 1e9:.1f} GB free, two checkpoints of the killed run take "
      f"{needed / 1e9:.1f} GB; name another folder with --out"
    )


def _losses(records: Records) -> list:
  return [(r["step"], key, r[key]) for r in records for key in sorted(r) if key.endswith("/loss")]


def _last_step(folder: Path) -> int:
  path = folder / METRICS_FILE
  records = read_metrics(path) if path.exists() else []
  return records[-1]["step"] if records else -1


def _train(folder: Path, options: Options) -> Records:
  code = _start(folder, options).wait()
  if code:
    raise ValueError(f"resjax train ended with exit code {code}, for the reason above")
  return read_metrics(folder / METRICS_FILE)


def _start(folder: Path, options: Options) -> subprocess.Popen:
  settings = {
    "workdir": folder,
    "train.steps": options.steps,
    "train.log_every": 1,
    "train.eval_every": 0,
    "train.sample_tokens": 0,
    "optim.warmup_steps": 2,
    "checkpoint.every": options.save_every,
    "checkpoint.keep_last": 1,
  }
  environment = {"XLA_FLAGS": options.xla_flags} if options.xla_flags else {}
  own = [f"--config.{key}={value}" for key, value in settings.items()]
  command = [sys.executable, "-m", "resjax", "train", *options.arguments, *own]
  return subprocess.Popen(command, env={**os.environ, **environment}, stdout=sys.stderr)


if __name__ == "__main__":
  command.run(main, takes_words=True)
