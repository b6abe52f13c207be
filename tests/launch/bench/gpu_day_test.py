"""The day at a GPU, without one: which arms it has, and that all of them run on a CPU."""

import json
import subprocess
import sys

import pytest

from launch.bench import correctness, gpu_goals
from tests.helpers.runs import REPOSITORY, environment


def day(*words):
  return subprocess.run(
    [sys.executable, *words], cwd=REPOSITORY, env=environment(), capture_output=True, text=True,
    check=False,
  )  # fmt: skip


SHOWN = """
import json
from launch.bench import gpu_day
for arms in (gpu_day.gpu_arms(), gpu_day.dry_arms()):
  print(json.dumps([(arm.name, arm.deadline) for arm in arms]))
"""


def kinds(names):
  """The kinds of arms in the order in which each comes for the first time."""
  return list(dict.fromkeys(name.split()[0] for name in names))


def test_the_most_important_comes_first_and_the_trial_has_the_same_kinds():
  gpu, dry = map(json.loads, day("-c", SHOWN).stdout.splitlines())
  for arms in (gpu, dry):
    assert len({name for name, _ in arms}) == len(arms)
    assert kinds(name for name, _ in arms) == [
      "right", "step", "read", "streams", "block", "network"
    ]  # fmt: skip
  assert all(deadline <= 180 for _, deadline in gpu)
  names = [name for name, _ in gpu]
  first = list(correctness.first_cases())
  assert names[: len(first)] == [f"right {case}" for case in first]
  assert names[len(first) : len(first) + 5] == [
    "step gpt2_124m standard",
    "step gpt2_124m standard,block_attn_res",
    *(f"read 8192x2048x8 {form}" for form in ("direct", "fla_checkpoint_0", "fla_checkpoint_1")),
  ]
  for name in (
    gpu_goals.step_name(gpu_goals.MODEL, ["standard", "mhc"]),
    gpu_goals.kernel_name("streams", gpu_goals.STREAMS, "direct"),
  ):
    assert name in names[:30]
  assert sum(name.startswith("right") for name in names) == len(correctness.cases())


def test_no_arm_of_this_name_is_one_line(tmp_path):
  done = day("-m", "launch.bench", "gpu_day", "--only=right,D=5", f"--out={tmp_path / 'out'}")
  assert done.returncode == 1
  assert done.stderr == "error: --only=right,D=5: no arm has these words in its name\n"


@pytest.mark.slow
def test_an_arm_on_a_cpu_and_what_a_later_call_prints(tmp_path):
  words = "-m", "launch.bench", "gpu_day", "--dry_run", f"--out={tmp_path}"
  done = day(*words, "--only=read,xla_no_stack", "--minutes=4")
  assert done.returncode == 0, done.stderr
  assert "read 32x128x2 xla_no_stack: ok, forward" in done.stdout
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    "gpu_day.json", "gpu_day.log", "gpu_day.png"
  ]  # fmt: skip
  again = day(*words, "--minutes=0")
  assert again.returncode == 0 and again.stdout == done.stdout.split("\n", 1)[1]
  assert again.stdout.startswith("1 arms on cpu, cpu, ")
  assert again.stdout.count("not measured") == len(gpu_goals.GOALS)


@pytest.mark.release
def test_the_trial_on_a_cpu_reaches_every_arm(tmp_path):
  done = day("-m", "launch.bench", "gpu_day", "--dry_run", f"--out={tmp_path}", "--minutes=30")
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / "gpu_day.json").read_text())["arms"]
  # Older versions of JAX have no interpreter, peers want torch and a GPU.
  for name, record in found.items():
    if not name.startswith("right ") and "fla" not in name:
      assert record["status"] == "ok", (name, record)
  step = found["step tiny standard,block_attn_res"]
  assert min(step[f"block_attn_res over standard{of}"] for of in ("", ", time of cores")) > 0
  assert len(found) == 27
