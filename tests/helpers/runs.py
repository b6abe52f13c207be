"""Short runs of resjax train in processes of their own."""

import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np

from resjax.base.records.metrics_log import read_metrics
from tests.helpers import xla

REPOSITORY = pathlib.Path(__file__).parents[2]
STEPS = 30


def command(root: pathlib.Path, workdir: pathlib.Path, *more: str) -> list[str]:
  settings = {
    "workdir": workdir,
    "data.root": root / "data",
    "data.corpora.stdlib.source": root / "text",
    "data.tokenizer.name": "byte",
    "data.seq_len": 32,
    "data.validation_fraction": 0.2,
    "model.num_layers": 3,
    "model.d_model": 64,
    "model.mlp_dim": 256,
    "train.steps": STEPS,
    "train.batch_size": 8,
    "train.log_every": 1,
    "train.eval_every": 5,
    "train.eval_rows": 8,
    "train.alignment_every": 0,
    "checkpoint.every": 10,
    "checkpoint.keep_last": 5,
    "train.sample_tokens": 0,
    "optim.warmup_steps": 5,
  }
  flags = [f"--config.{key}={value}" for key, value in settings.items()]
  return [sys.executable, "-m", "launch.train", "--config=configs/tiny.py", *flags, *more]


def environment(**variables: object) -> dict[str, str]:
  """Of a process with one device."""
  plain = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla.QUICK}
  return plain | {name: str(value) for name, value in variables.items()}


def start(arguments: list[str], **variables: object) -> subprocess.Popen:
  return subprocess.Popen(
    arguments,
    cwd=REPOSITORY,
    env=environment(**variables),
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
  )


def start_together(count: int, arguments: list[str], **variables: object) -> list[subprocess.Popen]:
  """Starts the processes of one run."""
  variables |= {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": count}
  return [start(arguments, **variables, JAX_PROCESS_ID=index) for index in range(count)]


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("", 0))
    return probe.getsockname()[1]


def ends(processes: list[subprocess.Popen], timeout: float = 240) -> list[tuple[int, str]]:
  """Returns exit code and output of each process."""
  deadline = time.monotonic() + timeout
  try:
    outputs = [p.communicate(timeout=max(deadline - time.monotonic(), 1))[0] for p in processes]
  finally:
    for process in processes:
      process.kill()
  return [(p.returncode, output) for p, output in zip(processes, outputs, strict=True)]


def finish(arguments: list[str]) -> str:
  process = start(arguments)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  return output


def wait_for(process: subprocess.Popen, condition) -> None:
  deadline = time.monotonic() + 240
  while not condition():
    assert process.poll() is None, process.communicate()[0]
    assert time.monotonic() < deadline
    time.sleep(0.01)


def last_step(workdir: pathlib.Path) -> int:
  path = workdir / "metrics.jsonl"
  records = read_metrics(path) if path.exists() else []
  return records[-1]["step"] if records else -1


SMALL = {
  "model.num_layers": 2,
  "model.d_model": 32,
  "model.mlp_dim": 64,
}


def small_command(root: pathlib.Path, workdir: pathlib.Path, **settings: object) -> list[str]:
  """Like `command`, of a model whose steps take milliseconds; a__b=c sets config.a.b."""
  found = SMALL | {name.replace("__", "."): value for name, value in settings.items()}
  return command(root, workdir, *[f"--config.{key}={value}" for key, value in found.items()])


def write_text(folder: pathlib.Path) -> pathlib.Path:
  """Writes the corpus of `command` and returns its root."""
  (folder / "text").mkdir()
  generator = np.random.default_rng(0)
  words = ["depth", "width", "layer", "token", "source", "stream", "query", "gate", "norm"]
  for number in range(40):
    text = " ".join(generator.choice(words, 300))
    (folder / "text" / f"{number}.txt").write_text(text)
  return folder
