"""The day at a GPU, without one: its report is complete, whatever becomes of an arm."""

import json
import subprocess
import sys

import pytest

from tests.helpers.runs import REPOSITORY, environment

# Arms of the same kinds as on a GPU: one that ends well, two that do not, one that hangs.
PROGRAM = """
import json, sys
from pathlib import Path
from launch.bench import gpu_day
from launch.bench.gpu_day import Arm

write = "import sys; open(sys.argv[1] + '/r.json', 'w').write('{\\"records\\": []}')"
gpu_day.dry_arms = lambda: [
  Arm("correctness", "well", ("-c", write, "{out}"), 60, "r.json"),
  Arm("correctness", "aborts", ("-c", write + "; import os; os.abort()", "{out}"), 60, "r.json"),
  Arm("bandwidth", "hangs", ("-c", "import time; time.sleep(600)"), 2, "r.json"),
  Arm("bandwidth", "cut", ("-c", write.replace("[]}", "[") , "{out}"), 60, "r.json"),
  Arm("peers", "mute", ("-c", "pass"), 60, "r.json"),
  Arm("killed", "last", ("-c", write, "{out}"), 60, "r.json"),
]
sys.argv[0] = "launch.bench.gpu_day"
gpu_day.cli.run(gpu_day.main)
"""


def day(*words, program=None):
  start = ["-m", "launch.bench", "gpu_day"] if program is None else ["-c", program]
  return subprocess.run(
    [sys.executable, *start, *words], cwd=REPOSITORY, env=environment(), capture_output=True,
    text=True, check=False,
  )  # fmt: skip


def read(out):
  return {
    record["arm"]: record for record in json.loads((out / "gpu_day.json").read_text())["arms"]
  }


def test_an_arm_that_aborts_or_hangs_costs_no_other(tmp_path):
  done = day("--dry_run", f"--out={tmp_path}", program=PROGRAM)
  assert done.returncode == 0, done.stderr
  found = read(tmp_path)
  assert list(found) == ["well", "aborts", "hangs", "cut", "mute", "last"]
  status = {name: record["status"] for name, record in found.items()}
  assert status.pop("well") == status.pop("last") == "ok"
  assert status == {
    "aborts": "killed by SIGABRT",
    "hangs": "over its deadline of 2 s",
    "cut": "ok; its result is cut off",
    "mute": "it has written no r.json",
  }
  assert found["well"]["result"] == found["aborts"]["result"] == {"records": []}
  assert found["cut"]["result"] is None and "6 arms, 4 not well" in done.stdout
  assert all(record["seconds"] >= 0 for record in found.values())

  # A later call for one stage leaves the records of the others, and one without time has a reason.
  done = day("--dry_run", "--stages=5", "--budget=0", f"--out={tmp_path}", program=PROGRAM)
  assert done.returncode == 0, done.stderr
  later = read(tmp_path)
  assert later.pop("last")["status"] == "no time left in its stage"
  assert later == {name: record for name, record in found.items() if name != "last"}


def test_a_stage_that_there_is_not_is_one_line():
  done = day("--stages=6")
  assert done.returncode == 1 and done.stderr == "error: --stages=6: allowed are 1, 2, 3, 4, 5\n"


SHOWN = """
import json
from launch.bench import gpu_day
for arms in (gpu_day.gpu_arms(), gpu_day.dry_arms()):
  print(json.dumps([(arm.stage, arm.name, arm.words, arm.deadline) for arm in arms]))
"""


def test_stages_keep_to_nine_minutes_and_the_trial_has_the_same_kinds_of_arms():
  done = day(program=SHOWN)
  gpu, dry = map(json.loads, done.stdout.splitlines())
  for arms in (gpu, dry):
    names = [name for _, name, *_ in arms]
    assert len(set(names)) == len(names)
    stages = [stage for stage, *_ in arms]
    assert list(dict.fromkeys(stages)) == ["correctness", "bandwidth", "peers", "step", "killed"]
    assert stages == sorted(stages, key=list(dict.fromkeys(stages)).index)
    assert all(deadline <= 540 for *_, deadline in arms)
  commands = [{words[3] for _, _, words, _ in arms} for arms in (gpu, dry)]
  assert commands[0] == commands[1] == {"correctness", "kernels", "step", "train"}
  asked = {word for _, _, words, _ in gpu for word in words}
  for word in ("--arms=fla_checkpoint_0", "--arms=fla_checkpoint_1", "--arms=liger"):
    assert word in asked
  shapes = {word for _, name, words, _ in gpu for word in words if word.startswith("--shapes")}
  assert len(shapes) >= 3
  for model in ("gpt2_124m", "llama_1p3b"):
    assert f"--model={model}" in asked


@pytest.mark.release
def test_the_trial_on_a_cpu_reaches_every_arm(tmp_path):
  done = day("--dry_run", f"--out={tmp_path}")
  assert done.returncode == 0, done.stderr
  found = read(tmp_path)
  assert {record["stage"] for record in found.values()} == {
    "correctness", "bandwidth", "peers", "step", "killed"
  }  # fmt: skip
  interpreter = found.pop("correctness")  # which older versions of JAX do not have
  assert interpreter["result"]["records"]
  assert all(record["status"] == "ok" and record["result"] for record in found.values()), found
  assert found["killed_tiny"]["result"]["killed"]["same_state"]
  assert found["step_tiny"]["result"]["block_attn_res over standard"] > 0
  peers = [record for record in found.values() if record["stage"] == "peers"]
  assert len(peers) == 3 and all(record["result"]["records"] for record in peers)
