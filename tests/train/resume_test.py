"""A run that is killed and started again is the run that was never killed."""

import hashlib
import pathlib
import shutil
import signal
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from resjax.base.records.metrics_log import read_metrics
from tests.helpers import forks
from tests.helpers.runs import STEPS, command, finish, last_step, start, wait_for, write_text


def hashes(workdir: pathlib.Path, step: int = STEPS) -> dict[str, str]:
  """SHA-256 of every array of parameters and optimizer."""
  found = {}
  for item in ("params", "optimizer"):
    tree = ocp.StandardCheckpointer().restore(workdir / "checkpoints" / str(step) / item)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      digest = hashlib.sha256(np.ascontiguousarray(leaf).tobytes()).hexdigest()
      found[item + jax.tree_util.keystr(path)] = digest
  return found


def size(path: pathlib.Path) -> int:
  return path.stat().st_size if path.is_file() else 0


def without_time(workdir: pathlib.Path) -> list[dict]:
  """Records without what depends on the clock, and without those that hold nothing else."""
  records = [
    {key: value for key, value in record.items() if not key.startswith(("time/", "goodput/"))}
    for record in read_metrics(workdir / "metrics.jsonl")
  ]
  return [record for record in records if set(record) > {"step"}]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
  return write_text(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def straight(root) -> pathlib.Path:
  finish(command(root, root / "straight"))
  return root / "straight"


def test_steps_are_all_there_once(straight):
  records = without_time(straight)
  assert [r["step"] for r in records if "train/loss" in r] == list(range(1, STEPS + 1))
  assert [r["step"] for r in records if "validation/loss" in r] == list(range(0, STEPS + 1, 5))
  assert records[-1]["train/loss" if "train/loss" in records[-1] else "validation/loss"] < 4


@pytest.mark.slow
def test_killed_and_interrupted_run_equals_straight_run(root, straight):
  workdir = root / "killed"
  process = start(command(root, workdir))
  wait_for(process, (workdir / "checkpoints" / "10").exists)
  wait_for(process, lambda: last_step(workdir) >= 12)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  killed_at = last_step(workdir)
  assert 12 <= killed_at < STEPS
  process = start(command(root, workdir))
  wait_for(process, lambda: last_step(workdir) > killed_at)
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 130, output
  assert "resuming after step 10 of 30" in output or "resuming after step 20 of 30" in output
  assert "which is saved; the same command goes on" in output
  assert "Traceback" not in output
  finish(command(root, workdir))
  assert hashes(workdir) == hashes(straight)
  assert without_time(workdir) == without_time(straight)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(root, straight):
  workdir = root / "altered"
  shutil.copytree(straight, workdir)
  path = max((workdir / "checkpoints" / "30" / "params").rglob("*"), key=size)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 4
  path.write_bytes(content)
  process = start(command(root, workdir, "--config.checkpoint.strict=True"))
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 1
  assert output.splitlines()[-1].startswith("error: the newest checkpoint in "), output
  output = finish(command(root, workdir))
  lines = [line for line in output.splitlines() if "is damaged" in line]
  assert len(lines) == 1 and lines[0].startswith("checkpoint 30 is damaged (params/"), output
  assert "resuming after step 20 of 30" in output
  assert hashes(workdir) == hashes(straight)
  assert without_time(workdir) == without_time(straight)


def with_room_for(size: int, arguments: list[str]) -> list[str]:
  """The command, with a bound on the bytes of each file that it writes."""
  program = (
    f"import os, resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
  )
  return [sys.executable, "-c", program, *arguments[1:]]


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_no_checkpoint(root, straight):
  workdir = root / "full"
  shutil.copytree(straight, workdir)
  shutil.rmtree(workdir / "checkpoints" / "30")
  process = start(with_room_for(100_000, command(root, workdir)))
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 1
  assert "Traceback" not in output and output.count("error:") == 1, output
  words = output.splitlines()[-1]
  assert words.startswith("error: the checkpoint of step 30 was not written "), output
  assert "File too large" in words and "that of step 20 is the last one" in words
  finish(command(root, workdir))
  assert hashes(workdir) == hashes(straight)
  names = [path.name for path in (workdir / "checkpoints").iterdir()]
  assert sorted(names) == ["10", "20", "30"]


@pytest.mark.slow
@pytest.mark.parametrize(
  "what", ["metrics.jsonl", pytest.param("training.png", marks=pytest.mark.release)]
)
def test_a_full_disk_while_records_or_the_report_are_written(root, straight, what):
  workdir = root / f"full-{what}"
  shutil.copytree(straight, workdir)
  room = size(workdir / "metrics.jsonl") - 500
  if what == "metrics.jsonl":
    shutil.rmtree(workdir / "checkpoints" / "30")
  else:
    room += 2000
    assert room < size(workdir / "plots" / what)
    shutil.rmtree(workdir / "plots")  # a start that trains nothing writes what is missing alone
  process = start(with_room_for(room, command(root, workdir)))
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 1
  assert "Traceback" not in output and output.count("error:") == 1, output
  words = output.splitlines()[-1]
  assert words.startswith("error: ") and "File too large" in words and what in words, output
  finish(command(root, workdir))
  assert hashes(workdir) == hashes(straight)
  assert without_time(workdir) == without_time(straight)


@pytest.fixture(scope="module")
def train():
  return forks.command("train")


def test_finished_run_says_so(root, straight, train):
  before = (straight / "metrics.jsonl").read_text()
  code, output = train(*command(root, straight)[3:])
  assert code == 0 and "nothing to train" in output, output
  assert (straight / "metrics.jsonl").read_text() == before


def test_another_model_is_refused(root, straight, train):
  code, output = train(*command(root, straight, "--config.model.residual.name=standard")[3:])
  assert code == 1
  assert output.splitlines()[-1].startswith("error: ")
  assert "model.residual.name was 'block_attn_res' and is 'standard'" in output
  assert "choose another config.workdir" in output


@pytest.fixture(scope="module")
def generate():
  return forks.command("generate")


@pytest.mark.slow
def test_generate_reads_the_checkpoint(straight, generate):
  def rows_of(*flags):
    code, output = generate(f"--checkpoint={straight}", *flags)
    assert code == 0, output
    return output

  output = rows_of("--prompt=depth", "--num_tokens=8", "--temperature=0")
  assert output.startswith("depth") and len(output) > len("depth")
  rows = rows_of("--prompt=depth", "--prompt=a", "--num_tokens=16", "--top_k=5", "--stop=e")
  rows, said, front = rows.rpartition("straight, step 30: ")
  assert said and front.endswith("in front of texts, as in training\n")
  first, second = rows.split("\n----\n")
  assert first.startswith("depth") and second.startswith("a")
  assert "e" not in first.removeprefix("depth") + second


@pytest.mark.parametrize(
  ("flag", "words"),
  [
    ("--top_k=-1", "top_k=-1 must be 0"),
    ("--top_p=0", "top_p=0.0 must be above 0"),
    ("--temperature=-1", "temperature=-1.0 must be 0"),
    ("--stop=ab", "stop='ab' is 2 tokens; it must be one"),
  ],
)
@pytest.mark.slow
def test_generate_refuses_in_one_line(straight, generate, flag, words):
  code, output = generate(f"--checkpoint={straight}", flag)
  assert code == 1
  assert output.startswith("error: ") and output.count("\n") == 1 and words in output
