"""SLURM: the script, what it does when it runs, the exact calls, and failures."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.fakes import ROOT, FakeTools, shellcheck

NAME = "--name=run1"
ROWS = "--config.train.batch_size=96"  # divide over all GPUs here
TRAIN = ("--", "python", "-m", "launch.train", f"--config={ROOT}/configs/tiny.py", ROWS)
TASK = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.fixture
def cluster(tmp_path):
  tools = FakeTools(
    *(tmp_path / "tools", "sbatch", "squeue", "scancel", "srun", "scontrol", "python", "apptainer")
  )
  tools.answer("^srun", run='while [[ "$1" == --* ]]; do shift; done; exec "$@"')
  return tools


def launch(cluster, *arguments):
  """Runs the launcher in the folder of the fakes, which is where logs go."""
  return cluster.run("launch.slurm", *arguments, cwd=cluster.folder)


def script(cluster, *arguments):
  code, output = launch(cluster, "run", NAME, *arguments)
  assert code == 0, output
  (submitted,) = cluster.matching("^sbatch")
  assert shellcheck(submitted.stdin) == ""
  return submitted.stdin


def options(text):
  return re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)


def test_one_process_per_gpu(cluster):
  more = ("--partition=p", "--account=a", "--option=--constraint=h100", "--grace_seconds=90")
  text = script(cluster, "--nodes=2", "--cpus_per_node=64", "--hours=1.5", *more, *TRAIN)
  assert options(text) == [
    *("--job-name=run1", "--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8"),
    *("--cpus-per-task=8", "--time=90", "--partition=p", "--account=a"),
    *(f"--chdir={cluster.folder}", "--output=runs/slurm/%x-%j.log", "--open-mode=append"),
    *("--signal=TERM@90", "--requeue", "--constraint=h100"),
  ]
  assert "srun --label --wait=90 --cpus-per-task=8 bash -c" in text
  assert "JAX_LOCAL_DEVICE_IDS" not in text
  assert (cluster.folder / "runs" / "slurm").is_dir()  # without it SLURM loses the log


def test_one_process_per_node(cluster):
  text = script(cluster, "--processes=node", "--gpus_per_node=4", *TRAIN)
  assert {"--ntasks-per-node=1", "--gpus-per-node=4"} <= set(options(text))
  assert "export JAX_LOCAL_DEVICE_IDS=0,1,2,3\n" in text


@pytest.mark.slow
@pytest.mark.parametrize("local", ["", "0,1,2,3"])
def test_jax_takes_one_gpu_per_task_unless_it_is_told_otherwise(local):
  program = (
    "import jax, logging; logging.basicConfig(level=logging.INFO);"
    "jax.distributed.initialize(); print(jax.process_count())"
  )
  step = {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1", "SLURM_NTASKS": "1"}
  mine = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "JAX_LOCAL_DEVICE_IDS": local}
  done = subprocess.run(
    [sys.executable, "-c", program],
    env={**os.environ, "JAX_PLATFORMS": "cpu", **TASK, **step, **mine},
    text=True,
    capture_output=True,
    timeout=120,
  )
  assert done.stdout == "1\n"
  assert re.search(r"visible devices: (\S+)", done.stderr)[1] == (local or "0")


def test_the_script_runs_the_command(cluster):
  command = ("--", "python", "a b", "it's $HOME")
  more = ("--env=A=b c", "--container=image 1.sif", "--setup=B=d; export B")
  text = script(cluster, *more, *command)
  cluster.answer("^apptainer", run='echo "$A $B"; shift 3; "$@"')
  done = subprocess.run(
    ["bash", "-c", text], env=cluster.environment(**TASK), text=True, capture_output=True
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines() == ["job 7, start 0, on n[1-2]", "b c d"]
  apptainer, python = (call.argv for call in cluster.calls[-2:])
  assert apptainer == ["apptainer", "exec", "--nv", "image 1.sif", *command[1:]]
  assert python == list(command[1:])


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_that_ends_by_itself_is_not_requeued(cluster, code):
  text = script(cluster, *TRAIN)
  cluster.answer("^python", code or "")
  done = subprocess.run(["bash", "-c", text], env=cluster.environment(**TASK))
  assert done.returncode == code and not cluster.matching("^scontrol")


def test_a_setup_that_fails_runs_nothing(cluster):
  text = script(cluster, "--setup=false", *TRAIN)
  done = subprocess.run(["bash", "-c", text], env=cluster.environment(**TASK))
  assert done.returncode == 1 and not cluster.matching("^srun")


def test_a_run_that_saved_because_slurm_stops_it_is_requeued(cluster):
  """SLURM sends SIGTERM to all processes of the tasks, and not to the script."""
  text = script(cluster, *TRAIN)
  cluster.answer("^srun", run='while [[ "$1" == --* ]]; do shift; done; exec setsid "$@"')
  cluster.answer("^python", run="trap 'exit 0' TERM; echo $PPID > task; sleep 60 & wait")
  environment = cluster.environment(**TASK)
  process = subprocess.Popen(["bash", "-c", text], env=environment, cwd=cluster.folder)
  task = cluster.folder / "task"
  while not (task.exists() and task.read_text()):
    time.sleep(0.02)
  time.sleep(0.2)
  os.killpg(os.getpgid(int(task.read_text())), signal.SIGTERM)
  assert process.wait(30) == 143
  assert cluster.calls[-1].argv == ["scontrol", "requeue", "7"]


def test_run_is_two_calls(cluster):
  code, output = launch(cluster, "run", NAME, *TRAIN)
  assert code == 0, output
  look = ["squeue", "--me", "--name=run1", "--noheader", "--format=%i"]
  assert [call.argv for call in cluster.calls] == [look, ["sbatch"]]


def test_a_name_that_exists_is_left_alone(cluster):
  cluster.answer("^squeue", "12\n")
  code, output = launch(cluster, "run", NAME, *TRAIN)
  assert code == 1 and len(cluster.calls) == 1
  assert "--name=run1 is job 12 already" in output and "resjax slurm delete" in output


@pytest.mark.parametrize("failing", ["squeue", "sbatch"])
def test_a_failure_leaves_nothing(cluster, failing):
  cluster.answer(f"^{failing}", 1)
  code, output = launch(cluster, "run", NAME, *TRAIN)
  last = output.splitlines()[-1]
  assert code == 1 and "; go on with: resjax slurm run --name=run1" in last
  cancels = [call.argv for call in cluster.matching("^scancel")]
  assert cancels == [["scancel", "--me", "--name=run1"]] * (failing == "sbatch")


def test_other_verbs(cluster):
  assert launch(cluster, "status", NAME)[0] == launch(cluster, "delete", NAME)[0] == 0
  states = ["squeue", "--me", "--name=run1", "--noheader", "--format=%i %T %M %R"]
  assert [call.argv for call in cluster.calls] == [states, ["scancel", "--me", "--name=run1"]]
  code, output = launch(cluster, "logs", NAME, "--dry_run")
  assert code == 1 and "no runs/slurm/run1-*.log yet" in output
  logs = cluster.folder / "runs" / "slurm"
  logs.mkdir(parents=True)
  (logs / "run1-7.log").touch()
  code, output = launch(cluster, "logs", NAME, "--dry_run")
  assert code == 0 and "tail --lines=100 -F runs/slurm/run1-7.log" in output


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    ((), "that needs a --gpu of h100, b200, rtxpro6000, and 1, 2, 4 or a multiple of 8 of them;"),
    (
      ("--option=--constraint=h100", "--gpus_per_node=4", "--nodes=3"),
      "that needs a --gpu of h100",
    ),
    (("--option=--gres=gpu:h100:8",), "--topology=h100-8"),
    (("--gpu=b200", "--nodes=2"), "--topology=b200-16"),
  ],
)
def test_the_fit_is_checked_where_the_gpus_are_known(cluster, flags, words):
  code, output = launch(cluster, "run", NAME, "--dry_run", "--nofit", *flags, *TRAIN)
  (line,) = [line for line in output.splitlines() if line.startswith("#   fit ")]
  assert code == 0 and "not checked: " in line and words in line


def test_dry_run_calls_nothing(cluster):
  code, output = launch(cluster, "run", NAME, "--dry_run", "--container=x.sif", *TRAIN)
  assert code == 0 and not cluster.calls and not (cluster.folder / "runs").exists()
  assert shellcheck(output) == ""


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (("run", *TRAIN), "--name= must be"),
    (("run", NAME), "say what to run"),
    (("run", NAME, "--hours=0.1", "--grace_seconds=400", *TRAIN), "no less than --hours=0.1"),
    (("run", NAME, "--nodes=0", *TRAIN), "nodes"),
    (("run", NAME, "--env=A", *TRAIN), "--env=A is not KEY=VALUE"),
    (("delete", NAME, *TRAIN), "delete runs no command"),
  ],
)
def test_mistakes_are_one_line_and_call_nothing(cluster, arguments, words):
  code, output = launch(cluster, *arguments)
  assert code == 1 and not cluster.calls
  assert output.startswith("error: ") and output.count("\n") == 1 and words in output


@pytest.mark.parametrize(("missing", "flags"), [("sbatch", ()), ("apptainer", ("--container=x",))])
def test_a_program_is_missing(cluster, missing, flags):
  (cluster.folder / "bin" / missing).unlink()
  code, output = launch(cluster, "run", NAME, *flags, *TRAIN)
  assert code == 1 and not cluster.calls
  *_, last = output.splitlines()
  assert last.startswith("error: ") and missing in last and "not on PATH" in last
