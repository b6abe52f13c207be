"""Trains on GKE with a JobSet; see launch/gke/README.md.

  resjax gke run --name=run1 --image=IMAGE --topology=v5litepod-16 --num_slices=2 \\
    -- resjax train --config=FILE --config.workdir=gs://BUCKET/run1
  resjax gke logs --name=run1

The other actions are status and delete. --dry_run prints the commands and the manifest instead of
running them. With --xpk_cluster=CLUSTER, xpk runs and deletes.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

from absl import flags

from launch import flag_check, launcher_args, preflight, shell_steps
from launch.gke import commands
from launch.gke.jobset import GkeJob, GpuNodes, TpuNodes
from launch.shell_steps import Step
from resjax.base import redaction
from resjax.base.hardware import gpu_nodes, slices
from resjax.cli import command

_NAME = flags.DEFINE_string("name", "", "Name of the JobSet.")
_NAMESPACE = flags.DEFINE_string("namespace", "default", "Kubernetes namespace of the JobSet.")
_IMAGE = flags.DEFINE_string("image", "", "Container image with the code and its packages.")
_TOPOLOGY = flags.DEFINE_string("topology", "", "TPU slice, such as v5litepod-16 or v5e:4x4.")
_NUM_SLICES = flags.DEFINE_integer("num_slices", 1, "Slices that train together.", lower_bound=1)
_GPU = flags.DEFINE_string("gpu", "", "GPU by its name in GKE, such as nvidia-h100-80gb.")
_NUM_NODES = flags.DEFINE_integer("num_nodes", 1, "Number of GPU nodes.", lower_bound=1)
_GPUS = flags.DEFINE_integer("gpus_per_node", 8, "Number of GPUs of a node.", lower_bound=1)
_SPOT = flags.DEFINE_bool("spot", False, "Run on Spot VMs.")
_RESERVATION = flags.DEFINE_string("reservation", "", "Run on nodes of this reservation.")
_QUEUE = flags.DEFINE_string("queue", "", "Name of a LocalQueue of Kueue.")
_ACCOUNT = flags.DEFINE_string("service_account", "", "Kubernetes account with access to gs://.")
_CLAIM = flags.DEFINE_multi_string("claim", [], "CLAIM=/PATH: volume claim that pods mount.")
_ENV = flags.DEFINE_multi_string("env", [], "KEY=VALUE for the environment of the command.")
_RESTARTS = flags.DEFINE_integer("max_restarts", 10, "Restarts after failures, not preemptions.")
_GRACE = flags.DEFINE_integer("grace_seconds", 120, "Time to save when it is stopped.")
_LINES = flags.DEFINE_integer("lines", 100, "How many earlier lines of the log to print.")
_SLICE = flags.DEFINE_string("slice", "0", "Number of the slice whose log is followed, or all.")
_HOST = flags.DEFINE_string("host", "0", "Number of the host in it whose log is followed, or all.")
_CLUSTER = flags.DEFINE_string("xpk_cluster", "", "GKE cluster on which xpk runs and deletes.")
_ZONE = flags.DEFINE_string("zone", "", "Zone for xpk; default: that of gcloud.")
_PROJECT = flags.DEFINE_string("project", "", "Project for xpk; default: that of gcloud.")
_FIT = flags.DEFINE_bool("fit", True, "Compile the step before, where possible, to see if it fits.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands instead of running them.")


def main(words: list[str], command: list[str]) -> None:
  """Runs the action that the command line names."""
  actions: dict[str, Callable[[], list[Step]]] = {
    "run": lambda: _create(command),
    "logs": _logs,
    "status": _status,
    "delete": _delete,
  }
  action = launcher_args.choose(actions, words, command)
  flag_check.check(command)
  launcher_args.check_google_name(_NAME.value)
  shell_steps.run(action(), launcher_args.same_again("launch.gke"), _DRY_RUN.value)


def _create(command: list[str]) -> list[Step]:
  job = _job(command)
  environment, words = redaction.mask(job.environment), tuple(redaction.words(job.command))
  shown = dataclasses.replace(job, environment=environment, command=words)

  def steps(job: GkeJob) -> list[Step]:
    return commands.xpk_run(job, _cluster()) if _CLUSTER.value else commands.run(job)

  todo = shell_steps.hide(steps(job), steps(shown))
  preflight.check(command, _hardware(job), compiles=_FIT.value)
  return todo


def _delete() -> list[Step]:
  if _CLUSTER.value:
    return [Step("delete the workload", commands.xpk_delete(_NAME.value, _cluster()))]
  return [Step("delete the JobSet", commands.delete(_NAME.value, _NAMESPACE.value))]


def _logs() -> list[Step]:
  where = (_NAME.value, _NAMESPACE.value)
  return [Step("follow the log", commands.logs(*where, _LINES.value, _SLICE.value, _HOST.value))]


def _status() -> list[Step]:
  return commands.status(_NAME.value, _NAMESPACE.value)


def _cluster() -> list[str]:
  """Returns the flags that say where the cluster is; gcloud's zone and project need none."""
  given = {"cluster": _CLUSTER.value, "zone": _ZONE.value, "project": _PROJECT.value}
  return [f"--{name}={value}" for name, value in given.items() if value]


def _job(command: list[str]) -> GkeJob:
  launcher_args.require_command(command)
  if _RESERVATION.value:
    launcher_args.check_reservation(_RESERVATION.value)
    if _SPOT.value:
      raise ValueError("Spot VMs come from no reservation; leave out --spot or --reservation")
  claims = _claims()
  otherwise = "mount a volume that all pods share, --claim=CLAIM=/PATH, and put it there"
  launcher_args.require_shared_workdir(command, list(claims.values()), otherwise)
  if not _IMAGE.value:
    raise ValueError("--image is missing; launch/gke/README.md says how to build one")
  return GkeJob(
    name=_NAME.value,
    namespace=_NAMESPACE.value,
    nodes=_nodes(),
    image=_IMAGE.value,
    command=tuple(command),
    environment=launcher_args.environment(_ENV.value),
    spot=_SPOT.value,
    reservation=_RESERVATION.value,
    queue=_QUEUE.value,
    service_account=_ACCOUNT.value,
    claims=claims,
    max_restarts=_RESTARTS.value,
    grace_seconds=_GRACE.value,
  )


def _nodes() -> TpuNodes | GpuNodes:
  if bool(_GPU.value) == bool(_TOPOLOGY.value):
    raise ValueError("set one of --topology=v5litepod-16 (TPUs) and --gpu=nvidia-h100-80gb (GPUs)")
  if _GPU.value:
    return GpuNodes(_GPU.value, _NUM_NODES.value, _GPUS.value)
  return TpuNodes(slices.resolve(_TOPOLOGY.value), _NUM_SLICES.value)


def _hardware(job: GkeJob) -> preflight.Hardware:
  shared = tuple(job.claims.values())
  if isinstance(job.nodes, TpuNodes):
    tpu, count = job.nodes.tpu, job.nodes.num_slices
    return preflight.Hardware(tpu.devices * count, tpu.name, count, shared)
  gpus = job.nodes.num_nodes * job.nodes.gpus
  found = gpu_nodes.find(job.nodes.accelerator.removeprefix("nvidia-").split("-")[0], gpus)
  return preflight.Hardware(gpus, found.name if found else "", shared=shared)


def _claims() -> dict[str, str]:
  for claim in _CLAIM.value:
    if not re.fullmatch(r"[a-z0-9][-a-z0-9.]*=/.+", claim):
      raise ValueError(f"--claim={claim} is not CLAIM=/PATH")
  return dict(claim.split("=", 1) for claim in _CLAIM.value)


run = functools.partial(command.run, main, takes_words=True)

if __name__ == "__main__":
  run()
