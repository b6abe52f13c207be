"""Trains on a SLURM cluster; see launch/slurm/README.md. Run it on a login node.

  resjax slurm run --name=run1 --nodes=4 --gpus_per_node=8 --hours=24 \\
    --setup="source .venv/bin/activate" -- resjax train --config=FILE
  resjax slurm logs --name=run1

The other actions are status and delete. --dry_run prints the commands and the script instead of
running them.
"""

import dataclasses
import functools
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from absl import flags

from launch import flag_check, launcher_args, preflight, shell_steps
from launch.shell_steps import Step
from launch.slurm.script import SlurmJob, script
from resjax.base import redaction
from resjax.base.hardware import GPU_TARGETS, gpu_nodes
from resjax.cli import command

_NAME = flags.DEFINE_string("name", "", "Name of the job.")
_NODES = flags.DEFINE_integer("nodes", 1, "Number of nodes.", lower_bound=1)
_GPUS = flags.DEFINE_integer("gpus_per_node", 8, "Number of GPUs of a node.", lower_bound=1)
_GPU = flags.DEFINE_string(
  "gpu", "", "Kind of the GPUs, to see if the step fits: h100; default: what an --option names."
)
_TASKS = flags.DEFINE_enum("processes", "gpu", ["gpu", "node"], "One process per GPU, or per node.")
_CPUS = flags.DEFINE_integer(
  "cpus_per_node", 0, "Number of CPUs of a node; 0: the cluster's default.", lower_bound=0
)
_HOURS = flags.DEFINE_float("hours", 24.0, "Time limit, after which the job goes on.", 0.05)
_PARTITION = flags.DEFINE_string("partition", "", "Partition; default: the cluster's.")
_ACCOUNT = flags.DEFINE_string("account", "", "Account; default: yours.")
_LOGS = flags.DEFINE_string("log_folder", "runs/slurm", "Folder of the log, NAME-JOB.log.")
_SETUP = flags.DEFINE_string("setup", "", "A shell line to run before the command.")
_CONTAINER = flags.DEFINE_string("container", "", "Apptainer image to run the command in.")
_ENV = flags.DEFINE_multi_string("env", [], "KEY=VALUE for the environment of the command.")
_GRACE = flags.DEFINE_integer("grace_seconds", 120, "Time to save before the limit.", lower_bound=1)
_OPTION = flags.DEFINE_multi_string("option", [], "sbatch option: --option=--constraint=h100.")
_FIT = flags.DEFINE_bool("fit", True, "Compile the step before, where possible, to see if it fits.")
_LINES = flags.DEFINE_integer("lines", 100, "How many earlier lines of the log to print.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands instead of running them.")


def main(words: list[str], command: list[str]) -> None:
  """Runs the action that the command line names."""
  actions: dict[str, Callable[[], list[Step]]] = {
    "run": lambda: _run(command),
    "logs": _logs,
    "status": _status,
    "delete": _delete,
  }
  action = launcher_args.choose(actions, words, command)
  flag_check.check(command)
  if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", _NAME.value):
    raise ValueError(f"--name={_NAME.value} must be of letters, digits, and ._- within")
  shell_steps.run(action(), launcher_args.same_again("launch.slurm"), _DRY_RUN.value)


def _run(words: list[str]) -> list[Step]:
  launcher_args.require_command(words)
  job = _job(words)
  if job.container and not _DRY_RUN.value and shutil.which("apptainer") is None:
    raise ValueError(f"--container={job.container} needs apptainer, which is not on PATH")
  if not _DRY_RUN.value:
    Path(_LOGS.value).mkdir(parents=True, exist_ok=True)  # sbatch makes no folder

  environment, setup = redaction.mask(job.environment), redaction.words([job.setup])[0]
  command, options = redaction.words(job.command), redaction.words(job.options)
  shown = dataclasses.replace(
    job, environment=environment, setup=setup, command=tuple(command), options=tuple(options)
  )

  def must_be_free(output: str) -> None:
    if output.strip():
      raise ValueError(
        f"--name={job.name} is job {', '.join(output.split())} already, and two of them would "
        "write to one workdir; choose another --name, or delete it: "
        f"resjax slurm delete --name={job.name}"
      )

  def submit(job: SlurmJob) -> list[Step]:
    return [Step("submit the job", ("sbatch",), stdin=script(job), undo=_cancel())]

  todo = [
    Step("look whether the name is free", _jobs("%i"), check=must_be_free),
    *shell_steps.hide(submit(job), submit(shown)),
  ]
  preflight.check(words, _hardware(job), compiles=_FIT.value)
  return todo


def _hardware(job: SlurmJob) -> preflight.Hardware:
  """Returns the GPUs of a job, of the kind of --gpu or of an option such as --constraint=h100."""
  named = sorted({*re.findall(r"\w+", " ".join(job.options))} & {*GPU_TARGETS})
  kind = _GPU.value or (named[0] if len(named) == 1 else "")
  gpus = job.nodes * job.gpus
  found = gpu_nodes.find(kind, gpus)
  return preflight.Hardware(gpus, found.name if found else "", sees_here=True)


def _job(command: list[str]) -> SlurmJob:
  if _GRACE.value >= 60 * _HOURS.value * 60:
    raise ValueError(f"--grace_seconds={_GRACE.value} is no less than --hours={_HOURS.value:g}")
  return SlurmJob(
    name=_NAME.value,
    nodes=_NODES.value,
    gpus=_GPUS.value,
    tasks_per_node=_GPUS.value if _TASKS.value == "gpu" else 1,
    cpus=_CPUS.value,
    minutes=round(60 * _HOURS.value),
    partition=_PARTITION.value,
    account=_ACCOUNT.value,
    folder=os.getcwd(),
    log=f"{_LOGS.value}/%x-%j.log",
    setup=_SETUP.value,
    container=_CONTAINER.value,
    command=tuple(command),
    environment=launcher_args.environment(_ENV.value),
    grace_seconds=_GRACE.value,
    options=tuple(_OPTION.value),
  )


def _jobs(columns: str) -> tuple[str, ...]:
  return ("squeue", "--me", f"--name={_NAME.value}", "--noheader", f"--format={columns}")


def _cancel() -> tuple[str, ...]:
  return ("scancel", "--me", f"--name={_NAME.value}")


def _logs() -> list[Step]:
  found = sorted(Path(_LOGS.value).glob(f"{_NAME.value}-*.log"), key=os.path.getmtime)
  if not found:
    raise ValueError(f"no {_LOGS.value}/{_NAME.value}-*.log yet; see resjax slurm status")
  return [Step("follow the log", ("tail", f"--lines={_LINES.value}", "-F", str(found[-1])))]


def _status() -> list[Step]:
  return [Step("number, state, time, nodes or reason", _jobs("%i %T %M %R"))]


def _delete() -> list[Step]:
  return [Step("cancel the job, which saves first", _cancel())]


run = functools.partial(command.run, main, takes_words=True)

if __name__ == "__main__":
  run()
