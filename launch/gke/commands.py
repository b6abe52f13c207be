"""The kubectl and xpk commands for one JobSet."""

import dataclasses

import yaml

from launch.gke.jobset import Job, TpuNodes, manifest, selector
from launch.shell import COORDINATOR_PORT, EXIT, one_line, supervised
from launch.shell_steps import Step


@dataclasses.dataclass(frozen=True)
class Cluster:
  """For xpk. name: of the GKE cluster; zone and project: empty: those that gcloud is set to."""

  name: str
  zone: str
  project: str

  @property
  def where(self) -> tuple[str, ...]:
    """Flags that all xpk commands need."""
    zone = (f"--zone={self.zone}",) if self.zone else ()
    project = (f"--project={self.project}",) if self.project else ()
    return (f"--cluster={self.name}", *zone, *project)


def run(job: Job) -> list[Step]:
  """Steps that create the JobSet."""
  kubectl = ("kubectl", f"--namespace={job.namespace}")

  def must_be_free(output: str) -> None:
    if output.strip():
      raise ValueError(
        f"--name={job.name} exists already; choose another --name, or delete it: "
        f"python -m launch.gke delete --name={job.name} --namespace={job.namespace}"
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
  """Deletes the JobSet with its pods, which save first; it is no failure if there is none."""
  return ("kubectl", f"--namespace={namespace}", "delete", "jobset", name, "--ignore-not-found")


def logs(name: str, namespace: str, lines: int, slice_index: str, host: str) -> tuple[str, ...]:
  """Follows the log of one pod, or with `all` of several."""
  chosen = selector(
    name, () if slice_index == "all" else (slice_index,), () if host == "all" else (host,)
  )
  kubectl = ("kubectl", f"--namespace={namespace}", "logs", f"--selector={chosen}")
  return (*kubectl, "--follow", "--prefix", f"--tail={lines}", "--max-log-requests=1000")


def status(name: str, namespace: str) -> list[Step]:
  """Steps that show the JobSet and its pods."""
  kubectl = ("kubectl", f"--namespace={namespace}", "get")
  pods = (*kubectl, "pods", f"--selector={selector(name)}", "--output=wide")
  return [
    Step("the JobSet", (*kubectl, "jobset", name)),
    Step("its pods, one per host", pods),
  ]


def xpk_run(job: Job, cluster: Cluster) -> list[Step]:
  """The step that creates the same with xpk.

  Raises:
    ValueError: xpk has no flag for it.
  """
  if not isinstance(job.nodes, TpuNodes):
    raise ValueError("xpk calls GPU nodes by other names; leave out --xpk_cluster")
  if job.claims or job.queue or job.service_account or job.namespace != "default":
    raise ValueError(
      "xpk has a queue, storage and account of its own; leave out --queue, --claim, "
      "--service_account and --namespace, or --xpk_cluster"
    )
  tpu = job.nodes.tpu
  # xpk takes a shape in place of the number: v5p-4x8x16.
  tpu_type = tpu.accelerator_type
  if not tpu.is_default_shape:
    tpu_type = f"{tpu.generation.accelerator}-{tpu.shape}"
  given = {"PYTHONUNBUFFERED": "1", "JAX_COORDINATOR_PORT": COORDINATOR_PORT, **job.environment}
  argv = (
    *("xpk", "workload", "create", f"--workload={job.name}", *cluster.where),
    f"--tpu-type={tpu_type}",
    f"--num-slices={job.nodes.num_slices}",
    f"--docker-image={job.image}",
    *(("--spot",) if job.spot else ()),
    *(f"--env={key}={value}" for key, value in given.items()),
    # exec: xpk sends SIGTERM to the shell that it runs this in, and that does not hand it on.
    f"--command=exec bash -c {one_line(supervised(job.command) + EXIT)}",
    f"--max-restarts={job.max_restarts}",
    f"--termination-grace-period-seconds={job.grace_seconds}",
  )
  return [Step("create the workload", argv, undo=xpk_delete(job.name, cluster))]


def xpk_delete(name: str, cluster: Cluster) -> tuple[str, ...]:
  """Deletes the workload with its pods."""
  return ("xpk", "workload", "delete", f"--workload={name}", *cluster.where, "--force")


class _Dumper(yaml.SafeDumper):
  """YAML in which text of several lines stands as it is."""


def _text(dumper: yaml.Dumper, value: str) -> yaml.ScalarNode:
  return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else "")


_Dumper.add_representer(str, _text)
