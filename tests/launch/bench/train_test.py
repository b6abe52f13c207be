"""The benchmark of training: what it reports, and that it tells a run that differs."""

import json
import subprocess
import sys

import pytest

from tests.helpers.runs import REPOSITORY, environment, finish, small_command, write_text


@pytest.mark.release
def test_a_killed_run_is_the_same_run(tmp_path):
  root = write_text(tmp_path)
  train = small_command(root, root / "unused")
  arguments = train[train.index("launch.train") + 1 :]
  command = [sys.executable, "-m", "launch.bench.train", "--steps=12", f"--out={root}/out"]
  output = finish([*command, "--", *arguments])
  report = json.loads((root / "out" / "bench_train.json").read_text())
  assert json.dumps(report, indent=2) in output
  killed = report["killed"]
  assert killed["same_losses"] and killed["same_state"] and killed["arrays"] > 20
  assert 10 <= killed["killed_after_step"] < 16
  timed = report["timed"]
  assert timed["mfu"] is None and timed["tokens_per_second"] > 0  # no peak of a CPU is known
  assert 0 < timed["input_share"] < 1 and 0 < timed["log_share"] < 1
  assert not list((root / "out").rglob("checkpoints"))  # 16 GB each at 1.35B parameters


def test_a_disk_without_room_for_two_checkpoints_is_refused_before_the_killed_run(tmp_path):
  words = "import shutil; from pathlib import Path; from launch.bench import train; "
  words += f"free = shutil.disk_usage({str(tmp_path)!r}).free; "
  words += f"train.check_room(Path({str(tmp_path)!r}), free // 3); print('room', flush=True); "
  words += f"train.check_room(Path({str(tmp_path)!r}), free)"
  done = subprocess.run(
    [sys.executable, "-c", words], cwd=REPOSITORY, env=environment(), capture_output=True, text=True
  )
  assert done.stdout == "room\n" and "two checkpoints" in done.stderr and "--out" in done.stderr


@pytest.mark.slow
def test_the_default_is_a_config_that_exists(tmp_path):
  shown = "import json; from launch.bench import train; print(json.dumps(train.DEFAULT))"
  default = json.loads(finish([sys.executable, "-c", shown]))
  arguments = [*default, f"--config.workdir={tmp_path}", "--dry_run"]
  output = finish([sys.executable, "-m", "launch.train", *arguments])
  assert "1,348," in output and "in the combinator 'standard'" in output
