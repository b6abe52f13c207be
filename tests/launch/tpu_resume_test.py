"""A command that is kept running on Cloud TPU VMs."""

import sys

import pytest

from resjax.base.records.metrics_log import read_metrics
from tests.data.conftest import make_texts, write_folder
from tests.helpers.fakes import ROOT, shellcheck

RESUME = ("resume", "--name=run1", "--zone=us-west4-a", "--topology=v5litepod-16")
RESUME += ("--poll_seconds=0",)


def launch(cloud, *arguments, cwd=ROOT):
  return cloud.run("launch.tpu", *arguments, cwd=cwd)


@pytest.mark.slow
def test_resume_after_a_preemption(cloud, checkout):
  launched = cloud.folder / "launched"
  program = (
    "import os, time, pathlib; state, seen = map(pathlib.Path, os.environ['FILES'].split(':'));"
    "first = os.getcwd().endswith('host0/resjax');"
    "count = seen.read_text().count('x') if seen.exists() else 0;"
    "first and seen.write_text('x' * (count + 1));"
    "first and not count and state.write_text('SUSPENDED\\n');"
    "time.sleep(0 if count else 60)"
  )
  more = (f"--env=FILES={cloud.state}:{launched}", "--delete_when_done", "--tier=spot")
  command = (*RESUME, *more, "--", "python", "-c", program)
  for_each = f"for host in {' '.join(map(str, cloud.homes))}; do"
  ends = "kill -KILL -- -$(cat $host/resjax-run/pid); rm -rf $host; mkdir $host"
  cloud.answer("queued-resources delete", run=f"rm {cloud.state}; {for_each} {ends}; done; true")
  code, output = launch(cloud, *command, cwd=checkout)
  assert code == 0, output
  assert len(cloud.matching("queued-resources create")) == 2
  assert len(cloud.matching("queued-resources delete")) == 2  # after the preemption, at the end
  assert not cloud.state.exists() and launched.read_text() == "xx"


@pytest.mark.slow
def test_resume_gives_up_when_the_command_fails(cloud, checkout):
  failing = ("--", "python", "-c", "raise SystemExit(5)")
  code, output = launch(cloud, *RESUME, *failing, cwd=checkout)
  last = output.splitlines()[-1]
  assert code == 1 and "error: the command ended with exit 5 on " in last
  assert "resjax tpu logs" in last and "resjax tpu delete" in last
  assert cloud.state.exists() and len(cloud.matching("queued-resources create")) == 1


@pytest.mark.slow
def test_resume_gives_up_after_three_tries_and_leaves_nothing(cloud, checkout):
  cloud.answer("resources scp", 1)
  code, output = launch(cloud, *RESUME, "--", "true", cwd=checkout)
  assert code == 1 and "try 2 of 3" in output and "go on with: resjax tpu resume" in output
  assert len(cloud.matching("queued-resources create")) == 3 and not cloud.state.exists()


def test_resume_of_a_done_run_starts_nothing(cloud, checkout):
  cloud.state.write_text("ACTIVE\n")
  for home in cloud.homes:
    (home / "resjax-run").mkdir()
    (home / "resjax-run" / "exit_code").write_text("0\n")
  code, output = launch(cloud, *RESUME, "--", "true", cwd=checkout)
  assert code == 0 and "the hosts are still up, to end them: resjax tpu delete" in output
  assert [call.argv[4] for call in cloud.calls] == ["list", "ssh"]


def test_dry_run_is_a_shell_script_and_calls_nothing(cloud, checkout):
  code, output = launch(cloud, *RESUME, "--dry_run", "--", "true", cwd=checkout)
  assert code == 0 and not cloud.calls
  assert shellcheck(output) == ""


def test_resume_says_at_once_that_it_cannot_look_and_later_looks_again(cloud, checkout):
  cloud.answer("queued-resources list", 1)
  code, output = launch(cloud, *RESUME, "--", "true", cwd=checkout)
  assert code == 1 and len(cloud.calls) == 1 and output.count("\n") == 1
  cloud.answer("queued-resources list", "ACTIVE\n")
  answers = "".join(f"resjax-status host{number} exit 0 | done\n" for number in range(4))
  running = answers.replace("host0 exit 0", "host0 running")  # the others are done
  cloud.answer("resources ssh", running, 1, answers.split("\n", 1)[1], answers)
  code, output = launch(cloud, *RESUME, "--", "true", cwd=checkout)
  assert code == 0
  assert "looking, try 1 of 60: gcloud" in output
  assert "looking, try 2 of 60: 3 of 4 hosts answered" in output


@pytest.mark.release
@pytest.mark.parametrize("change", [False, True], ids=["the same text", "other text"])
def test_a_new_host_builds_its_data_again_and_goes_on(cloud, checkout, tmp_path, change):
  """Text, and the data that are built from it, lie on disks that a preemption takes away."""
  texts = write_folder(tmp_path / "download", make_texts(60))
  starts, run = tmp_path / "starts", tmp_path / "run"
  settings = {
    "workdir": run,
    "data.root": "data",
    "data.corpora.stdlib.source": "text",
    "data.tokenizer.name": "byte",
    "data.seq_len": 32,
    "model.num_layers": 2,
    "model.d_model": 64,
    "train.alignment_every": 0,
    "train.sample_tokens": 0,
    "optim.warmup_steps": 2,
    "checkpoint.every": 5,
  }
  flags = " ".join(f"--config.{key}={value}" for key, value in settings.items())
  train = f"{sys.executable} -m launch.train --config=configs/tiny.py {flags}"
  # Host 0 trains: to step 5 before the preemption, and to step 10 after it.
  script = f"""
    case $HOME in *host0) ;; *) exit 0 ;; esac
    echo x >> {starts}
    {sys.executable} -c 'import shutil; shutil.copytree("{texts}", "text")'
    if [ -e {run}/run.json ]; then exec {train} --config.train.steps=10; fi
    {train} --config.train.steps=5 || exit 1
    {"printf ! >> " + str(texts / "0009.txt") if change else ""}
    echo SUSPENDED > {cloud.state}
    sleep 60
  """
  for_each = f"for host in {' '.join(map(str, cloud.homes))}; do"
  ends = "kill -KILL -- -$(cat $host/resjax-run/pid); rm -rf $host; mkdir $host"
  cloud.answer("queued-resources delete", run=f"rm {cloud.state}; {for_each} {ends}; done; true")
  more = ("--env=JAX_PLATFORMS=cpu", "--tier=spot", "--", "bash", "-c", script)
  code, output = launch(cloud, *RESUME, *more, cwd=checkout)
  log = (cloud.homes[0] / "resjax-run" / "log").read_text()
  assert starts.read_text() == "x\nx\n", log
  steps = [
    record["step"] for record in read_metrics(run / "metrics.jsonl") if "train/loss" in record
  ]
  if change:
    assert code == 1 and "the command ended with exit 1" in output
    assert "1 of 60 documents changed, the first is 0009.txt#0" in log
    assert "after config.data.root was copied from the machine that built them" in log
  else:
    assert code == 0, log
    assert steps[-1] == 10 and (run / "checkpoints" / "10").is_dir()
