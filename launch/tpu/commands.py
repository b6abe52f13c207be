"""Builds the gcloud commands for one queued resource."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from launch.shell_steps import Step
from launch.tpu import remote
from launch.tpu.code import NOT_SENT, Code
from resjax.base.hardware import TpuSlice

_GROUP = ("gcloud", "compute", "tpus", "queued-resources")
# What a request of each tier says; https://docs.cloud.google.com/tpu/docs/consumption-options.
TIERS = {
  "on_demand": (),
  "spot": ("--spot",),
  "reserved": ("--reserved",),
  "calendar": ("--provisioning-model=reservation-bound",),
  "flex_start": ("--provisioning-model=flex-start",),
}
ENDED = ("FAILED", "SUSPENDING", "SUSPENDED", "DELETING")
_SCOPES = "https://www.googleapis.com/auth/cloud-platform"


@dataclasses.dataclass(frozen=True)
class Resource:
  """A queued resource: one slice, or several that train together.

  Attributes:
    name: the name of the queued resource, and of its nodes.
    zone: the zone of the TPUs, such as `us-west4-a`.
    project: the Google Cloud project; empty for the one that gcloud is set to.
    internal_ip: whether hosts are reached by their internal addresses.
  """

  name: str
  zone: str
  project: str
  internal_ip: bool

  @property
  def where(self) -> tuple[str, ...]:
    """The flags that all commands need."""
    project = (f"--project={self.project}",) if self.project else ()
    return (f"--zone={self.zone}", *project)


@dataclasses.dataclass(frozen=True)
class Request:
  """What a queued resource is requested with.

  Attributes:
    tpu: the slice.
    num_slices: how many such slices.
    tier: one of `TIERS`.
    reservation: the reservation that it comes from; empty: any that matches.
    run_time: after which the hosts of `flex_start` are deleted, such as 24h; empty: never.
    waits: how long the request stays in the queue, such as 48h; empty: for ever.
    runtime: the software version of the VMs.
    service_account: the account of the VMs; empty for the project's default.
    network: the network of the VMs.
    subnetwork: the subnetwork of the VMs; empty for the network's default.
  """

  tpu: TpuSlice
  num_slices: int
  tier: str
  reservation: str
  run_time: str
  waits: str
  runtime: str
  service_account: str
  network: str
  subnetwork: str


def state(resource: Resource) -> tuple[str, ...]:
  """Returns the command that prints the state of the resource, or nothing if there is none."""
  name = f"name~/queuedResources/{resource.name}$"
  return (*_GROUP, "list", *resource.where, f"--filter={name}", "--format=value(state.state)")


def create(resource: Resource, request: Request, poll_seconds: float) -> list[Step]:
  """Returns the steps that request a slice and wait for its hosts."""

  def must_be_free(output: str) -> None:
    if output.strip():
      raise ValueError(
        f"--name={resource.name} exists already, its state is {output.strip()}; choose another "
        f"--name, or delete it: {again('delete', resource)}"
      )

  return [
    Step("look whether the name is free", state(resource), check=must_be_free),
    Step("request the slice", _request(resource, request), undo=delete(resource)),
    Step("wait until its hosts are up", ("bash", "-c", _wait(resource, poll_seconds))),
  ]


def install(resource: Resource, code: Code, packed: str, python: str, extra: str) -> list[Step]:
  """Returns the steps that bring code to all hosts and install it.

  Args:
    resource: the hosts.
    code: the code that they get.
    packed: the path of a file that is made here for a while, without its ending.
    python: the version of Python to install.
    extra: the extras of the package to install.
  """

  def must_be_clean(output: str) -> None:
    if output.strip():
      first = output.strip().splitlines()[0].strip()
      raise ValueError(f"hosts get the last commit, and this is not in it: {first}; commit it")

  everywhere = (*resource.where, "--node=all", "--worker=all", *_address(resource))

  def copy(file: str, name: str) -> Step:
    words = (*_GROUP, "scp", file, f"{resource.name}:{name}", *everywhere, "--quiet")
    return Step("copy it to all hosts", words)

  todo: list[Step] = []
  if code.folder:
    packed += ".tar.gz"
    left_out = tuple(f"--exclude={name}" for name in NOT_SENT)
    pack = ("tar", "--create", "--gzip", f"--file={packed}", *left_out)
    todo += [
      Step("pack the folder", (*pack, f"--directory={code.folder}", ".")),
      copy(packed, remote.ARCHIVE),
      Step("remove what was packed", ("rm", packed)),
    ]
  elif not code.wheel:
    packed += ".bundle"
    clean = ("git", "status", "--porcelain")
    todo += [
      Step("look whether all is committed", clean, check=must_be_clean),
      Step("pack the code", ("git", "bundle", "create", "--quiet", packed, "HEAD")),
      copy(packed, remote.BUNDLE),
      Step("remove what was packed", ("rm", packed)),
    ]
  wheel = Path(code.wheel).name
  if code.wheel:
    todo.append(copy(code.wheel, wheel))
  sent = remote.ARCHIVE if code.folder else "" if code.wheel else remote.BUNDLE
  script = remote.install(python, extra, sent, wheel)
  return [*todo, Step("install it on all hosts", ssh(resource, script))]


def start(resource: Resource, command: Sequence[str], environment: dict[str, str]) -> list[Step]:
  """Returns the steps that start a command on all hosts, or on none if one of them fails."""
  script = remote.start(command, environment)
  return [Step("start it on all hosts", ssh(resource, script), undo=stop(resource, seconds=10))]


def stop(resource: Resource, seconds: int) -> tuple[str, ...]:
  """Returns the command that lets the training save and end, and kills it after `seconds`."""
  return ssh(resource, remote.stop(seconds))


def delete(resource: Resource) -> tuple[str, ...]:
  """Returns the command that deletes the resource and its hosts; it succeeds if there is none."""
  command = (*_GROUP, "delete", resource.name, *resource.where, "--force", "--quiet")
  gone = f'{{ left=$({shlex.join(state(resource))}) && [ -z "$left" ]; }}'
  return ("bash", "-c", f"{shlex.join(command)} ||\n  {gone}\n")


def ssh(resource: Resource, script: str, node: str = "all", worker: str = "all") -> tuple[str, ...]:
  """Returns the command that runs a script on hosts: on `all`, or on one by its number."""
  hosts = (f"--node={node}", f"--worker={worker}", "--batch-size=all")
  reach = (*resource.where, *hosts, *_address(resource))
  return (*_GROUP, "ssh", resource.name, *reach, "--quiet", f"--command={script}")


def _address(resource: Resource) -> tuple[str, ...]:
  return ("--internal-ip",) if resource.internal_ip else ()


def _request(resource: Resource, request: Request) -> tuple[str, ...]:
  named = (f"--reservation={request.reservation}",) if request.reservation else ()
  lasts = (f"--max-run-duration={request.run_time}",) if request.run_time else ()
  tier = () if named and request.tier == "reserved" else TIERS[request.tier]
  # `gcloud compute tpus` without `alpha` knows no names of reservations, models or times to run.
  gcloud, *group = _GROUP
  alpha = ("alpha",) if named or request.tier == "flex_start" else ()
  single = (f"--node-id={resource.name}",)
  several = (f"--node-count={request.num_slices}", f"--node-prefix={resource.name}")
  return (
    *(gcloud, *alpha, *group, "create", resource.name, *resource.where),
    *_slice(request.tpu),
    f"--runtime-version={request.runtime}",
    *(single if request.num_slices == 1 else several),
    *(*named, *tier, *lasts),
    *((f"--valid-until-duration={request.waits}",) if request.waits else ()),
    f"--network={request.network}",
    *((f"--subnetwork={request.subnetwork}",) if request.subnetwork else ()),
    *(("--internal-ips",) if resource.internal_ip else ()),
    *((f"--service-account={request.service_account}",) if request.service_account else ()),
    f"--scopes={_SCOPES}",  # so that hosts may read and write gs:// paths
    "--quiet",
  )


def _slice(tpu: TpuSlice) -> tuple[str, ...]:
  """Returns the flags for a slice; an accelerator type stands for its most compact shape only."""
  if tpu.is_default_shape:
    return (f"--accelerator-type={tpu.accelerator_type}",)
  return (f"--type={tpu.generation.accelerator}", f"--topology={tpu.shape}")


def _wait(resource: Resource, poll_seconds: float) -> str:
  describe = (*_GROUP, "describe", resource.name, *resource.where, "--format=yaml(state)")
  return f"""\
set -euo pipefail
while true; do
  state=$({shlex.join(state(resource))})
  echo "$(date +%H:%M:%S) ${{state:-gone}}"
  case "$state" in
    ACTIVE) exit 0 ;;
    {" | ".join(ENDED)} | '')
      {shlex.join(describe)} >&2
      exit 1
      ;;
  esac
  sleep {poll_seconds:g}
done
"""


def again(action: str, resource: Resource) -> str:
  """Returns the launcher's command line for an action on this resource."""
  return shlex.join(["resjax", "tpu", action, f"--name={resource.name}", *resource.where])
