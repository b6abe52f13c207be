"""Writes the batch script of a run."""

import dataclasses
import shlex
from collections.abc import Mapping

from launch.shell import EXIT, STOPPED, heredoc, supervised


@dataclasses.dataclass(frozen=True)
class SlurmJob:
  """What a batch job runs, and on which nodes.

  Attributes:
    name: the name of the job.
    nodes: the number of nodes.
    gpus: the number of GPUs of a node.
    tasks_per_node: the number of processes of a node: one, or one per GPU.
    cpus: the number of CPUs of a node; 0 for the cluster's default.
    minutes: the time limit, after which the job is queued again and goes on.
    partition: the partition; empty for the cluster's default.
    account: the account; empty for the user's default.
    folder: the folder that the command runs in, on a disk that all nodes share.
    log: the file that the output is appended to; %x is the name, %j the number of the job.
    setup: a shell line to run before the command, such as `source .venv/bin/activate`.
    container: the Apptainer image; empty for none.
    command: the command that each task runs.
    environment: variables that are added to the environment of the command.
    grace_seconds: the time before the limit in which the command saves.
    options: further options of sbatch, such as `--constraint=h100`.
  """

  name: str
  nodes: int
  gpus: int
  tasks_per_node: int
  cpus: int
  minutes: int
  partition: str
  account: str
  folder: str
  log: str
  setup: str
  container: str
  command: tuple[str, ...]
  environment: Mapping[str, str]
  grace_seconds: int
  options: tuple[str, ...]


def script(job: SlurmJob) -> str:
  """Returns the script for sbatch.

  JAX learns from SLURM's environment which process is the first and how many there are. It takes
  one GPU for each task, unless JAX_LOCAL_DEVICE_IDS lists more. Every task must therefore see all
  GPUs of its node, and the script binds none. JAX derives the coordinator's port from the number of
  the job, so that two jobs on one node do not meet.
  """
  options = "\n".join(f"#SBATCH {option}" for option in _options(job))
  return f"""\
#!/bin/bash
{options}
{_body(job)}
# {STOPPED} means that SLURM stopped the tasks, and that they have saved. The job goes on later.
if [ "$code" = {STOPPED} ]; then
  echo "stopped after saving: back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
fi
{EXIT}"""


def _options(job: SlurmJob) -> list[str]:
  lines = {
    "job-name": job.name,
    "nodes": job.nodes,
    "ntasks-per-node": job.tasks_per_node,
    "gpus-per-node": job.gpus,
    "cpus-per-task": job.cpus // job.tasks_per_node,
    "time": job.minutes,
    "partition": job.partition,
    "account": job.account,
    "chdir": job.folder,
    "output": job.log,
    "open-mode": "append",
    "signal": f"TERM@{job.grace_seconds}",  # goes to the tasks, not to this script
  }
  given = [f"--{key}={value}" for key, value in lines.items() if value]
  return [_option(option) for option in (*given, "--requeue", *job.options)]


def _option(option: str) -> str:
  """Returns an option as sbatch reads it in a comment, which cannot hold a line break."""
  if not option.startswith("-") or not option.isprintable():
    raise ValueError(f"{option!r} is no option for sbatch: --NAME or --NAME=VALUE in one line")
  name, equals, value = option.partition("=")
  return shlex.quote(name) + equals + (shlex.quote(value) if equals else "")


def _body(job: SlurmJob) -> str:
  # When one task fails the others end, but not at once, since some may still be saving.
  srun = ["srun", "--label", f"--wait={job.grace_seconds}"]
  if job.cpus:
    srun.append(f"--cpus-per-task={job.cpus // job.tasks_per_node}")  # not inherited from sbatch
  inside = ["apptainer", "exec", "--nv", job.container] if job.container else []
  exports = {"PYTHONUNBUFFERED": "1", **job.environment}
  if job.tasks_per_node == 1 and job.gpus > 1:
    exports["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(gpu) for gpu in range(job.gpus))
  exported = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in exports.items())
  setup = f"{{\n{job.setup}\n}} || exit 1\n" if job.setup else ""  # it may end in a comment
  task = supervised([*inside, *job.command], hand_on=False) + EXIT
  return f"""\
{setup}set -uo pipefail
{exported}echo "job $SLURM_JOB_ID, start ${{SLURM_RESTART_COUNT:-0}}, on $SLURM_JOB_NODELIST"
task=$(cat {heredoc(task, "END_OF_TASK")})
code=0
{shlex.join(srun)} bash -c "$task" || code=$?"""
