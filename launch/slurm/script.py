"""The batch script of a run."""

import dataclasses
import shlex
from collections.abc import Mapping

from launch.shell import EXIT, STOPPED, supervised


@dataclasses.dataclass(frozen=True)
class Job:
  """What to run.

  Attributes:
    name: of the job.
    nodes: how many.
    gpus: of each node.
    tasks_per_node: processes of each node: one, or one per GPU.
    cpus: of each node; 0: what the cluster gives.
    minutes: limit of one stay in the queue's machines, after which the job goes on in another.
    partition: empty: the cluster's default.
    account: empty: the user's default.
    folder: where the command runs, on a disk that all nodes share.
    log: file for the output, appended; %x is the name, %j the number of the job.
    setup: a line of shell before the command, as `source .venv/bin/activate`.
    container: image for Apptainer; empty: none.
    command: what each task runs.
    environment: added to that of the command.
    grace_seconds: before the limit, in which the command saves.
    options: more options of sbatch, as `--constraint=h100`.
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


def script(job: Job) -> str:
  """Returns the script for sbatch.

  JAX reads SLURM's environment: who is process 0, and how many there are. It takes one GPU per
  task, unless JAX_LOCAL_DEVICE_IDS lists more; hence tasks must see all GPUs of their node, and
  nothing here binds them. The coordinator's port is made of the number of the job: two jobs on one
  node do not meet.
  """
  options = "\n".join(f"#SBATCH {option}" for option in _options(job))
  return f"""\
#!/bin/bash
{options}
{_body(job)}
# {STOPPED}: SLURM told the tasks to stop, they have saved. The job goes on in another stay.
if [ "$code" = {STOPPED} ]; then
  echo "stopped after saving: back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
fi
{EXIT}"""


def _options(job: Job) -> list[str]:
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
    "signal": f"TERM@{job.grace_seconds}",  # to the tasks, not to this script
  }
  given = [f"--{key}={shlex.quote(str(value))}" for key, value in lines.items() if value]
  return [*given, "--requeue", *job.options]


def _body(job: Job) -> str:
  # Others do not wait for one that has failed; not at once, since some may still be saving.
  srun = ["srun", "--label", f"--wait={job.grace_seconds}"]
  if job.cpus:
    srun.append(f"--cpus-per-task={job.cpus // job.tasks_per_node}")  # not inherited from sbatch
  inside = ["apptainer", "exec", "--nv", job.container] if job.container else []
  exports = {"PYTHONUNBUFFERED": "1", **job.environment}
  if job.tasks_per_node == 1 and job.gpus > 1:
    exports["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(gpu) for gpu in range(job.gpus))
  exported = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in exports.items())
  setup = f"{{ {job.setup}; }} || exit 1\n" if job.setup else ""
  task = supervised([*inside, *job.command], hand_on=False) + EXIT
  return f"""\
{setup}set -uo pipefail
{exported}echo "job $SLURM_JOB_ID, start ${{SLURM_RESTART_COUNT:-0}}, on $SLURM_JOB_NODELIST"
task=$(cat <<'END_OF_TASK'
{task}END_OF_TASK
)
code=0
{shlex.join(srun)} bash -c "$task" || code=$?"""
