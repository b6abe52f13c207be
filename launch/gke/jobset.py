"""Builds the JobSet manifest of a run, which has one Job per slice and one pod per host."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from launch.shell import COORDINATOR_PORT, EXIT, supervised
from resjax.base.hardware import TpuSlice

_JOB = "hosts"  # name of the replicated job; pods are called NAME-hosts-SLICE-HOST-...
_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclasses.dataclass(frozen=True)
class TpuNodes:
  """The hardware of a job that trains on TPU slices.

  Attributes:
    tpu: what each slice is.
    num_slices: how many slices train together.
  """

  tpu: TpuSlice
  num_slices: int


@dataclasses.dataclass(frozen=True)
class GpuNodes:
  """The hardware of a job that trains on machines with GPUs.

  Attributes:
    accelerator: the name of the GPU in GKE, such as nvidia-h100-80gb.
    num_nodes: how many nodes train together.
    gpus: how many GPUs a node has.
  """

  accelerator: str
  num_nodes: int
  gpus: int


@dataclasses.dataclass(frozen=True)
class GkeJob:
  """What a JobSet runs, and on which nodes.

  Attributes:
    name: the name of the JobSet.
    namespace: its Kubernetes namespace.
    nodes: the nodes that it runs on.
    image: the container image; its working directory is the code, and it has the packages.
    command: the command that each pod runs.
    environment: variables that are added to the environment of each pod.
    spot: whether the nodes are Spot VMs.
    reservation: the reservation that the nodes are of; empty: any nodes.
    queue: the LocalQueue of Kueue; empty for none.
    service_account: the Kubernetes account of the pods; empty for the default one.
    claims: the mount path of each PersistentVolumeClaim.
    max_restarts: how many failures to restart after; disruptions of nodes do not count.
    grace_seconds: the time from SIGTERM until a pod is killed.
  """

  name: str
  namespace: str
  nodes: TpuNodes | GpuNodes
  image: str
  command: tuple[str, ...]
  environment: Mapping[str, str]
  spot: bool
  reservation: str
  queue: str
  service_account: str
  claims: Mapping[str, str]
  max_restarts: int
  grace_seconds: int


def manifest(job: GkeJob) -> dict[str, Any]:
  """Returns the JobSet, API jobset.x-k8s.io/v1alpha2."""
  nodes = job.nodes
  metadata: dict[str, Any] = {"name": job.name, "namespace": job.namespace}
  if job.queue:
    metadata["labels"] = {"kueue.x-k8s.io/queue-name": job.queue}
  if isinstance(nodes, TpuNodes):  # each slice is a node pool, and gets one Job
    replicas, hosts = nodes.num_slices, nodes.tpu.hosts
    topology = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    metadata["annotations"] = {topology: "cloud.google.com/gke-nodepool"}
  else:
    replicas, hosts = 1, nodes.num_nodes
  replicated = {
    "name": _JOB,
    "replicas": replicas,
    "template": {"spec": _job(hosts, _pod(job))},
  }
  return {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": metadata,
    "spec": {"failurePolicy": _failure_policy(job.max_restarts), "replicatedJobs": [replicated]},
  }


def _failure_policy(max_restarts: int) -> dict[str, Any]:
  """Starts all pods again when one has failed; disruptions of nodes are not counted."""
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
    "backoffLimit": 0,  # a pod that starts again alone could not join the others
    "podFailurePolicy": {"rules": [disrupted]},
    "template": {"spec": pod},
  }


def _pod(job: GkeJob) -> dict[str, Any]:
  selector, resource, count = _accelerators(job.nodes)
  tolerations = []
  if job.reservation:
    *_, name = project = job.reservation.split("/")
    label = "cloud.google.com/reservation"
    selector |= {f"{label}-name": name, f"{label}-affinity": "specific"}
    if project != [name]:
      selector[f"{label}-project"] = project[1]
  if job.spot:
    spot = "cloud.google.com/gke-spot"
    selector[spot] = "true"
    tolerations = [{"key": spot, "operator": "Equal", "value": "true", "effect": "NoSchedule"}]
  mounts = [{"name": claim, "mountPath": path} for claim, path in job.claims.items()]
  volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in job.claims]
  container = {
    "name": "host",
    "image": job.image,
    "command": ["bash", "-c", _literal(supervised(job.command) + EXIT)],
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
  """Returns the labels of the nodes, and the resource and the number that each pod takes."""
  if isinstance(nodes, GpuNodes):
    return {"cloud.google.com/gke-accelerator": nodes.accelerator}, "nvidia.com/gpu", nodes.gpus
  labels = {
    "cloud.google.com/gke-tpu-accelerator": nodes.tpu.generation.gke_accelerator,
    "cloud.google.com/gke-tpu-topology": nodes.tpu.shape,
  }
  return labels, "google.com/tpu", nodes.tpu.host_chips


def environment(job: GkeJob) -> list[dict[str, Any]]:
  """Returns the environment of a pod; on GPUs it numbers the processes, on TPUs GKE does."""
  values = {"PYTHONUNBUFFERED": "1"}
  if isinstance(job.nodes, TpuNodes):
    values["JAX_COORDINATOR_PORT"] = str(COORDINATOR_PORT)
  else:
    values["JAX_COORDINATOR_ADDRESS"] = f"{job.name}-{_JOB}-0-0.{job.name}:{COORDINATOR_PORT}"
    values["JAX_NUM_PROCESSES"] = str(job.nodes.num_nodes)
  listed: list[dict[str, Any]] = [
    {"name": key, "value": _literal(value)} for key, value in {**values, **job.environment}.items()
  ]
  if isinstance(job.nodes, GpuNodes):
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}
    listed.append({"name": "JAX_PROCESS_ID", "valueFrom": field})
  return listed


def _literal(text: str) -> str:
  """Returns a text that Kubernetes makes `text` of: it puts variables in place of $(NAME)."""
  return re.sub(r"\$(?=[$(])", "$$", text)


def selector(name: str, slice_index: Sequence[str] = (), host: Sequence[str] = ()) -> str:
  """Returns the label selector of the pods of a JobSet, or of chosen slices and hosts of it."""
  labels = [f"jobset.sigs.k8s.io/jobset-name={name}"]
  labels += [f"jobset.sigs.k8s.io/job-index={index}" for index in slice_index]
  labels += [f"{_INDEX}={index}" for index in host]
  return ",".join(labels)
