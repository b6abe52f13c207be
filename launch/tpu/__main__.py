"""Trains on Cloud TPU VMs; see launch/tpu/README.md.

  python -m launch.tpu create --name=run1 --zone=us-west4-a --topology=v5litepod-16 --tier=spot
  python -m launch.tpu install --name=run1 --zone=us-west4-a
  python -m launch.tpu run --name=run1 --zone=us-west4-a -- python -m launch.train --config=FILE
  python -m launch.tpu logs --name=run1 --zone=us-west4-a

or all of it, and again after each preemption: resume. Also: status, stop, delete. --dry_run prints
the commands.
"""

import getpass
import re
import tempfile
from pathlib import Path

from absl import flags

from launch import cli, launcher_args, shell_steps
from launch.shell_steps import Step
from launch.tpu import commands, remote, resume
from resjax.hardware import slices

_NAME = flags.DEFINE_string("name", "", "Of the queued resource and its nodes.")
_ZONE = flags.DEFINE_string("zone", "", "For example us-west4-a.")
_PROJECT = flags.DEFINE_string("project", "", "Default: the one that gcloud is set to.")
_TOPOLOGY = flags.DEFINE_string("topology", "", "For example v5litepod-16, or v5e:4x4.")
_NUM_SLICES = flags.DEFINE_integer("num_slices", 1, "Slices that train together.", lower_bound=1)
_TIER = flags.DEFINE_enum("tier", "on_demand", ["on_demand", "spot", "reserved"], "How to pay.")
_RUNTIME = flags.DEFINE_string("runtime_version", "", "Default: the one for this kind of TPU.")
_ACCOUNT = flags.DEFINE_string("service_account", "", "Of the VMs; default: the project's.")
_NETWORK = flags.DEFINE_string("network", "default", "Of the VMs.")
_SUBNETWORK = flags.DEFINE_string("subnetwork", "", "Of the VMs.")
_INTERNAL = flags.DEFINE_bool("internal_ip", False, "VMs have no external addresses.")
_PYTHON = flags.DEFINE_string(  # on 3.12.1 gcsfs crashes while a checkpoint is written to gs://
  "python", "3.13", "Version of Python to install."
)
_EXTRA = flags.DEFINE_string("extra", "tpu", "Extra of setup.cfg to install; also tpu,wandb.")
_ENV = flags.DEFINE_multi_string("env", [], "KEY=VALUE for the command; may be repeated.")
_SHARED = flags.DEFINE_string("shared_folder", "", "A folder that all hosts share, as /mnt/disk.")
_NODE = flags.DEFINE_string("node", "0", "Slice whose log is followed: a number, or all.")
_WORKER = flags.DEFINE_string("worker", "0", "Host whose log is followed: a number, or all.")
_LINES = flags.DEFINE_integer("lines", 100, "Lines of log before those to come.")
_STOP = flags.DEFINE_integer("stop_seconds", 300, "For the command to save when it is stopped.")
_POLL = flags.DEFINE_float("poll_seconds", 30.0, "Between looks at the state.")
_DELETE = flags.DEFINE_bool("delete_when_done", False, "resume: delete the hosts at the end.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands instead of running them.")


def main(words: list[str], command: list[str]) -> None:
  """Does what the word on the command line says."""
  verbs = {
    "create": lambda: _run(_create()),
    "install": lambda: _run(_install()),
    "run": lambda: _run(_start(command)),
    "logs": lambda: _run([Step("follow the log", _logs())]),
    "status": lambda: _run(_status()),
    "resume": lambda: _resume(command),
    "stop": lambda: _run([Step("stop it", commands.stop(_resource(), _STOP.value))]),
    "delete": lambda: _run([Step("delete the hosts", commands.delete(_resource()))]),
  }
  verb = launcher_args.choose(verbs, words)
  if command and words[0] not in ("run", "resume"):
    raise ValueError(f"{words[0]} runs no command; leave out what follows --")
  verb()


def _run(todo: list[Step]) -> None:
  shell_steps.run(todo, launcher_args.same_again("launch.tpu"), _DRY_RUN.value)


def _resource() -> commands.Resource:
  if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", _NAME.value):
    raise ValueError(f"--name={_NAME.value} must be up to 40 of a-z, 0-9 and -, first a letter")
  if not _ZONE.value:
    raise ValueError("--zone is missing, for example --zone=us-west4-a")
  return commands.Resource(_NAME.value, _ZONE.value, _PROJECT.value, _INTERNAL.value)


def _request() -> commands.Request:
  tpu = slices.resolve(_TOPOLOGY.value)
  if not tpu.generation.runtime:
    raise ValueError(f"--topology={_TOPOLOGY.value} is not a Cloud TPU VM; see launch.gke")
  return commands.Request(
    tpu=tpu,
    num_slices=_NUM_SLICES.value,
    tier=_TIER.value,
    runtime=_RUNTIME.value or tpu.generation.runtime,
    service_account=_ACCOUNT.value,
    network=_NETWORK.value,
    subnetwork=_SUBNETWORK.value,
  )


def _create() -> list[Step]:
  return commands.create(_resource(), _request(), _POLL.value)


def _install() -> list[Step]:
  bundle = Path(tempfile.gettempdir()) / f"{getpass.getuser()}-{_NAME.value}.bundle"
  return commands.install(_resource(), str(bundle), _PYTHON.value, _EXTRA.value)


def _start(command: list[str]) -> list[Step]:
  launcher_args.require_command(command)
  otherwise = "say which folder all hosts share, --shared_folder=/PATH, and put it there"
  launcher_args.require_shared_workdir(command, [_SHARED.value], otherwise)
  return commands.start(_resource(), command, launcher_args.environment(_ENV.value))


def _logs() -> tuple[str, ...]:
  script = remote.logs(_LINES.value)
  return commands.ssh(_resource(), script, _NODE.value, _WORKER.value)


def _status() -> list[Step]:
  return [
    Step("state of the queued resource", commands.state(_resource())),
    Step("state of the command on each host", commands.ssh(_resource(), remote.status())),
  ]


def _resume(command: list[str]) -> None:
  everything = [*_create(), *_install(), *_start(command)]  # says what is wrong before any wait
  if _DRY_RUN.value:
    print("# If there is nothing yet, and again whenever the slice is SUSPENDED or FAILED:\n")
    _run([Step("delete what preemption left", commands.delete(_resource())), *everything])
    print("\n# Until it has ended on all hosts, which this tells:\n")
    _run(_status())
    return
  resume.keep_running(
    _resource(),
    hosts=_request().tpu.vms * _NUM_SLICES.value,
    create=_create,
    install=_install,
    start=lambda: _start(command),
    go_on=launcher_args.same_again("launch.tpu"),
    poll_seconds=_POLL.value,
  )
  if _DELETE.value:
    _run([Step("delete the hosts", commands.delete(_resource()))])
  else:
    print(f"done; the hosts are still up, to end them: {commands.again('delete', _resource())}")


if __name__ == "__main__":
  cli.run(main, takes_words=True)
