"""Builds the kubectl and xpk commands for one JobSet."""

from collections.abc import Sequence

import yaml

from launch.gke.jobset import GkeJob, TpuNodes, manifest, selector
from launch.shell import COORDINATOR_PORT, EXIT, one_line, supervised
from launch.shell_steps import Step


def run(job: GkeJob) -> list[Step]:
  """Returns the steps that create the JobSet."""
  kubectl = ("kubectl", f"--namespace={job.namespace}")

  def must_be_free(output: str) -> None:
    if output.strip():
      raise ValueError(
        f"--name={job.name} exists already; choose another --name, or delete it: "
        f"resjax gke delete --name={job.name} --namespace={job.namespace}"
      )

  look = (*kubectl, "get", "jobset", job.name, "--ignore-not-found", "--output=name")
  text = yaml.dump(manifest(job), Dumper=_Dumper, sort_keys=False, width=1000)
  return [
    Step("look whether the name is free", look, check=must_be_free),
    Step(
      "create the JobSet",
      (*kubectl, "apply", "--filename=-"),
      stdin=text,
      undo=delete(job.name, job.namespace),
    ),
  ]


def delete(name: str, namespace: str) -> tuple[str, ...]:
  """Returns the command that deletes the JobSet; its pods save first, and there may be none."""
  return ("kubectl", f"--namespace={namespace}", "delete", "jobset", name, "--ignore-not-found")


def logs(name: str, namespace: str, lines: int, slice_index: str, host: str) -> tuple[str, ...]:
  """Returns the command that follows the log of one pod, or with `all` of several."""
  chosen = selector(
    name, () if slice_index == "all" else (slice_index,), () if host == "all" else (host,)
  )
  kubectl = ("kubectl", f"--namespace={namespace}", "logs", f"--selector={chosen}")
  return (*kubectl, "--follow", "--prefix", f"--tail={lines}", "--max-log-requests=1000")


def status(name: str, namespace: str) -> list[Step]:
  """Returns the steps that show the JobSet and its pods."""
  kubectl = ("kubectl", f"--namespace={namespace}", "get")
  pods = (*kubectl, "pods", f"--selector={selector(name)}", "--output=wide")
  return [
    Step("the JobSet", (*kubectl, "jobset", name)),
    Step("its pods, one per host", pods),
  ]


def xpk_run(job: GkeJob, cluster: Sequence[str]) -> list[Step]:
  """Returns the step that creates the job with xpk instead of kubectl.

  Args:
    job: the job.
    cluster: the flags that say where the cluster is.

  Raises:
    ValueError: the job needs something that xpk has no flag for.
  """
  if not isinstance(job.nodes, TpuNodes):
    raise ValueError("xpk has other names for GPU nodes; leave out --xpk_cluster")
  if job.claims or job.queue or job.service_account or job.namespace != "default":
    raise ValueError(
      "xpk has a queue, storage and account of its own; leave out --queue, --claim, "
      "--service_account and --namespace, or --xpk_cluster"
    )
  if job.reservation:  # `xpk workload` leaves it out where nodes are not provisioned for the job
    raise ValueError("xpk takes the nodes that its cluster has; leave out --reservation")
  for key, value in job.environment.items():
    if not value.isprintable() or '"' in value or "\\" in value:
      raise ValueError(f"xpk cannot hand on the value of --env={key}: it has quotes or line breaks")
  tpu = job.nodes.tpu
  # xpk takes a shape in place of the number: v5p-4x8x16.
  tpu_type = tpu.accelerator_type
  if not tpu.is_default_shape:
    tpu_type = f"{tpu.generation.accelerator}-{tpu.shape}"
  given = {"PYTHONUNBUFFERED": "1", "JAX_COORDINATOR_PORT": COORDINATOR_PORT, **job.environment}
  argv = (
    *("xpk", "workload", "create", f"--workload={job.name}", *cluster),
    f"--tpu-type={tpu_type}",
    f"--num-slices={job.nodes.num_slices}",
    f"--docker-image={job.image}",
    *(("--spot",) if job.spot else ()),
    *(f"--env={key}={value}" for key, value in given.items()),
    # xpk sends SIGTERM to the shell that runs this; without exec it would end there.
    f"--command=exec bash -c {one_line(supervised(job.command) + EXIT)}",
    f"--max-restarts={job.max_restarts}",
    f"--termination-grace-period-seconds={job.grace_seconds}",
  )
  return [Step("create the workload", argv, undo=xpk_delete(job.name, cluster))]


def xpk_delete(name: str, cluster: Sequence[str]) -> tuple[str, ...]:
  """Returns the command that deletes the workload with its pods."""
  return ("xpk", "workload", "delete", f"--workload={name}", *cluster, "--force")


class _Dumper(yaml.SafeDumper):
  """Writes YAML in which text of several lines keeps its line breaks."""


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
  return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else "")


_Dumper.add_representer(str, _text)
