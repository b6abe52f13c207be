"""The JobSet manifest of a run: one Job per slice, one pod per host."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from launch.shell import COORDINATOR_PORT, EXIT, supervised
from resjax.hardware.slices import TpuSlice

_JOB = "hosts"  # name of the replicated job: pods are called NAME-hosts-SLICE-HOST-...
_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclasses.dataclass(frozen=True)
class TpuNodes:
  """TPU slices. num_slices: how many train together."""

  tpu: TpuSlice
  num_slices: int


@dataclasses.dataclass(frozen=True)
class GpuNodes:
  """GPU nodes. accelerator: its name in GKE, as nvidia-h100-80gb; gpus: of each node."""

  accelerator: str
  num_nodes: int
  gpus: int


@dataclasses.dataclass(frozen=True)
class Job:
  """What runs in the pods.

  Attributes:
    name: of the JobSet.
    namespace: where it is.
    nodes: what it runs on.
    image: container image with the code, as the working directory, and its packages.
    command: what each pod runs.
    environment: added to that of each pod.
    spot: whether nodes are Spot VMs.
    queue: LocalQueue of Kueue; empty: none.
    service_account: of Kubernetes, with access to the gs:// paths; empty: the default one.
    claims: mount path of each PersistentVolumeClaim.
    max_restarts: after failures; disruptions of nodes do not count.
    grace_seconds: from SIGTERM until pods are killed.
  """

  name: str
  namespace: str
  nodes: TpuNodes | GpuNodes
  image: str
  command: tuple[str, ...]
  environment: Mapping[str, str]
  spot: bool
  queue: str
  service_account: str
  claims: Mapping[str, str]
  max_restarts: int
  grace_seconds: int


def manifest(job: Job) -> dict[str, Any]:
  """Returns the JobSet, API jobset.x-k8s.io/v1alpha2."""
  tpus = isinstance(job.nodes, TpuNodes)
  metadata: dict[str, Any] = {"name": job.name, "namespace": job.namespace}
  if job.queue:
    metadata["labels"] = {"kueue.x-k8s.io/queue-name": job.queue}
  if tpus:  # a slice is a node pool: one Job each
    topology = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    metadata["annotations"] = {topology: "cloud.google.com/gke-nodepool"}
  hosts = job.nodes.tpu.hosts if tpus else job.nodes.num_nodes
  replicated = {
    "name": _JOB,
    "replicas": job.nodes.num_slices if tpus else 1,
    "template": {"spec": _job(hosts, _pod(job))},
  }
  return {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": metadata,
    "spec": {"failurePolicy": _failure_policy(job.max_restarts), "replicatedJobs": [replicated]},
  }


def _failure_policy(max_restarts: int) -> dict[str, Any]:
  """All pods start again when one has failed; a disruption of its node is not counted."""
  disruption = {
    "name": "disruption",
    "action": "RestartJobSetAndIgnoreMaxRestarts",
    "onJobFailureReasons": ["PodFailurePolicy"],
  }
  return {"maxRestarts": max_restarts, "rules": [disruption]}


def _job(hosts: int, pod: dict[str, Any]) -> dict[str, Any]:
  condition = {"type": "DisruptionTarget", "status": "True"}
  disrupted = {"action": "FailJob", "onPodConditions": [condition]}
  return {
    "completionMode": "Indexed",
    "parallelism": hosts,
    "completions": hosts,
    "backoffLimit": 0,  # a pod alone cannot join the others again
    "podFailurePolicy": {"rules": [disrupted]},
    "template": {"spec": pod},
  }


def _pod(job: Job) -> dict[str, Any]:
  selector, resource, count = _accelerators(job.nodes)
  tolerations = []
  if job.spot:
    spot = "cloud.google.com/gke-spot"
    selector[spot] = "true"
    tolerations = [{"key": spot, "operator": "Equal", "value": "true", "effect": "NoSchedule"}]
  mounts = [{"name": claim, "mountPath": path} for claim, path in job.claims.items()]
  volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in job.claims]
  container = {
    "name": "host",
    "image": job.image,
    "command": ["bash", "-c", supervised(job.command) + EXIT],
    "env": environment(job),
    "ports": [{"containerPort": COORDINATOR_PORT}],
    "resources": {"limits": {resource: count}},
    **({"volumeMounts": mounts} if mounts else {}),
  }
  return {
    "restartPolicy": "Never",  # required by podFailurePolicy
    "terminationGracePeriodSeconds": job.grace_seconds,
    "nodeSelector": selector,
    **({"tolerations": tolerations} if tolerations else {}),
    **({"serviceAccountName": job.service_account} if job.service_account else {}),
    "containers": [container],
    **({"volumes": volumes} if volumes else {}),
  }


def _accelerators(nodes: TpuNodes | GpuNodes) -> tuple[dict[str, str], str, int]:
  """Labels of the nodes; name and number of the accelerators of each pod."""
  if isinstance(nodes, GpuNodes):
    return {"cloud.google.com/gke-accelerator": nodes.accelerator}, "nvidia.com/gpu", nodes.gpus
  labels = {
    "cloud.google.com/gke-tpu-accelerator": nodes.tpu.generation.gke_accelerator,
    "cloud.google.com/gke-tpu-topology": nodes.tpu.shape,
  }
  return labels, "google.com/tpu", nodes.tpu.host_chips


def environment(job: Job) -> list[dict[str, Any]]:
  """Returns the environment of a pod: on TPUs GKE tells JAX who is who, on GPUs this does."""
  values = {"PYTHONUNBUFFERED": "1"}
  if isinstance(job.nodes, TpuNodes):
    values["JAX_COORDINATOR_PORT"] = str(COORDINATOR_PORT)
  else:
    values["JAX_COORDINATOR_ADDRESS"] = f"{job.name}-{_JOB}-0-0.{job.name}:{COORDINATOR_PORT}"
    values["JAX_NUM_PROCESSES"] = str(job.nodes.num_nodes)
  listed: list[dict[str, Any]] = [
    {"name": key, "value": value} for key, value in {**values, **job.environment}.items()
  ]
  if isinstance(job.nodes, GpuNodes):
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}
    listed.append({"name": "JAX_PROCESS_ID", "valueFrom": field})
  return listed


def selector(name: str, slice_index: Sequence[str] = (), host: Sequence[str] = ()) -> str:
  """Returns the label selector of the pods of a JobSet, or of one slice and host of it."""
  labels = [f"jobset.sigs.k8s.io/jobset-name={name}"]
  labels += [f"jobset.sigs.k8s.io/job-index={index}" for index in slice_index]
  labels += [f"{_INDEX}={index}" for index in host]
  return ",".join(labels)
