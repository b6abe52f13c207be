"""Trains on Cloud TPU VMs; see launch/tpu/README.md.

  resjax tpu create --name=run1 --zone=us-west4-a --topology=v5litepod-16 --tier=spot
  resjax tpu install --name=run1 --zone=us-west4-a
  resjax tpu run --name=run1 --zone=us-west4-a -- resjax train --config=FILE
  resjax tpu logs --name=run1 --zone=us-west4-a
  resjax tpu watch --workdir=gs://BUCKET/run1

`resume` does all of this, and does it again after each preemption. The other actions are status,
stop and delete. --dry_run prints the commands instead of running them.
"""

import functools
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from absl import flags

from launch import flag_check, launcher_args, preflight, shell_steps, watching
from launch.shell_steps import Step
from launch.tpu import commands, remote, resume
from launch.tpu.code import Code
from resjax.base import redaction
from resjax.base.hardware import slices
from resjax.cli import command

_NAME = flags.DEFINE_string("name", "", "Name of the queued resource and of its nodes.")
_ZONE = flags.DEFINE_string("zone", "", "Zone of the TPUs, for example us-west4-a.")
_PROJECT = flags.DEFINE_string("project", "", "Google Cloud project; default: that of gcloud.")
_TOPOLOGY = flags.DEFINE_string("topology", "", "TPU slice, such as v5litepod-16 or v5e:4x4.")
_NUM_SLICES = flags.DEFINE_integer("num_slices", 1, "Slices that train together.", lower_bound=1)
_TIER = flags.DEFINE_enum("tier", "", ["", *commands.TIERS], "Pricing; default: on_demand.")
_RESERVATION = flags.DEFINE_string("reservation", "", "Reservation to take the slices from.")
_RUN_TIME = flags.DEFINE_string("max_run_duration", "", "flex_start: delete hosts after it: 7d.")
_WAITS = flags.DEFINE_string("valid_until_duration", "", "Leave the queue after it: 48h.")
_RUNTIME = flags.DEFINE_string("runtime_version", "", "TPU software; default: by kind of TPU.")
_ACCOUNT = flags.DEFINE_string("service_account", "", "Account of the VMs; default: the project's.")
_NETWORK = flags.DEFINE_string("network", "default", "Network of the VMs.")
_SUBNETWORK = flags.DEFINE_string("subnetwork", "", "Subnetwork of the VMs.")
_INTERNAL = flags.DEFINE_bool("internal_ip", False, "Give the VMs no external addresses.")
_PYTHON = flags.DEFINE_string(  # on 3.12.1 gcsfs crashes while a checkpoint is written to gs://
  "python", "3.13", "Version of Python to install on the hosts."
)
_FOLDER = flags.DEFINE_string(
  "folder", "", "Folder that hosts get as it is, in place of the last commit of the git checkout."
)
_WHEEL = flags.DEFINE_string("wheel", "", "Wheel that hosts install, in place of the code.")
_EXTRA = flags.DEFINE_string("extra", "tpu", "Extras of setup.cfg to install, such as tpu,wandb.")
_ENV = flags.DEFINE_multi_string("env", [], "KEY=VALUE for the environment of the command.")
_SHARED = flags.DEFINE_string("shared_folder", "", "Folder that all hosts share: /mnt/disk.")
_NODE = flags.DEFINE_string("node", "0", "Number of the slice whose log is followed, or all.")
_WORKER = flags.DEFINE_string("worker", "0", "Number of the host whose log is followed, or all.")
_LINES = flags.DEFINE_integer("lines", 100, "How many earlier lines to print.")
_WORKDIR = flags.DEFINE_string("workdir", "", "watch: the config.workdir of the run.")
_STOP = flags.DEFINE_integer("stop_seconds", 300, "Time to save when it is stopped.")
_POLL = flags.DEFINE_float("poll_seconds", 30.0, "Time between looks at the state.")
_DELETE = flags.DEFINE_bool("delete_when_done", False, "resume: delete the hosts at the end.")
_FIT = flags.DEFINE_bool(
  "fit", True, "Compile the step before, where libtpu is, to see if it fits."
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands instead of running them.")


def main(words: list[str], command: list[str]) -> None:
  """Runs the action that the command line names."""
  actions: dict[str, Callable[[], None]] = {
    "create": lambda: _create_alone(command),
    "install": lambda: _run(_install()),
    "run": lambda: _run(_checked(_start(command), command)),
    "logs": lambda: _run([Step("follow the log", _logs())]),
    "watch": lambda: watching.follow(_WORKDIR.value, _LINES.value, _POLL.value),
    "status": lambda: _run(_status()),
    "resume": lambda: _resume(command),
    "stop": lambda: _run([Step("stop it", commands.stop(_resource(), _STOP.value))]),
    "delete": lambda: _run([Step("delete the hosts", commands.delete(_resource()))]),
  }
  action = launcher_args.choose(actions, words, command, ("create", "run", "resume"))
  flag_check.check(command)
  action()


def _checked(todo: list[Step], command: list[str]) -> list[Step]:
  """Returns the steps, after what can be checked before they run."""
  _code().require_config(launcher_args.own_config(command), _SHARED.value)
  tpu = slices.resolve(_TOPOLOGY.value) if _TOPOLOGY.value else None
  hardware = preflight.Hardware(
    devices=tpu.devices * _NUM_SLICES.value if tpu else 0,
    topology=tpu.name if tpu else "",
    num_slices=_NUM_SLICES.value if tpu else 1,
    shared=(_SHARED.value,),
  )
  preflight.check(command, hardware, compiles=_FIT.value)
  return todo


def _run(todo: list[Step]) -> None:
  shell_steps.run(todo, launcher_args.same_again("launch.tpu"), _DRY_RUN.value)


def _resource() -> commands.Resource:
  launcher_args.check_google_name(_NAME.value)
  if not _ZONE.value:
    raise ValueError("--zone is missing, for example --zone=us-west4-a")
  return commands.Resource(_NAME.value, _ZONE.value, _PROJECT.value, _INTERNAL.value)


def _request() -> commands.Request:
  tpu = slices.resolve(_TOPOLOGY.value)
  if not tpu.generation.runtime:
    raise ValueError(f"--topology={_TOPOLOGY.value} is not a Cloud TPU VM; see resjax gke")
  return commands.Request(
    tpu=tpu,
    num_slices=_NUM_SLICES.value,
    tier=_tier(),
    reservation=_RESERVATION.value,
    run_time=_RUN_TIME.value,
    waits=_WAITS.value,
    runtime=_RUNTIME.value or tpu.generation.runtime,
    service_account=_ACCOUNT.value,
    network=_NETWORK.value,
    subnetwork=_SUBNETWORK.value,
  )


def _tier() -> str:
  """Returns the tier of the request, which what goes with it may tell.

  Raises:
    ValueError: the flags of the request do not go together, or one is malformed.
  """
  for flag in (_RUN_TIME, _WAITS):
    if not re.fullmatch(r"(\d+[dhms])*", flag.value):
      raise ValueError(f"--{flag.name}={flag.value} is no duration; give one such as 24h or 7d12h")
  named = _RESERVATION.value
  tier = _TIER.value or ("reserved" if named else "on_demand")
  if named:
    launcher_args.check_reservation(named)
  if named and tier not in ("reserved", "calendar"):
    raise ValueError(f"--tier={tier} takes no reservation; leave out --reservation or --tier")
  if tier == "calendar" and not named:
    raise ValueError(
      "--tier=calendar is a reservation in calendar mode: name it, --reservation=NAME"
    )
  if tier == "flex_start" and not _RUN_TIME.value:
    raise ValueError(
      "--tier=flex_start lends TPUs for a time: say how long, --max_run_duration=24h"
    )
  if tier != "flex_start" and _RUN_TIME.value:  # gcloud alpha would make a Spot request a usual one
    raise ValueError(
      f"--tier={tier} lends TPUs for no time set before; leave out --max_run_duration, or give "
      "--tier=flex_start"
    )
  return tier


def _create() -> list[Step]:
  return commands.create(_resource(), _request(), _POLL.value)


def _create_alone(command: list[str]) -> None:
  todo = _create()
  try:
    _code().check()
  except ValueError as error:  # the hosts can also be used without `install`, or from elsewhere
    print(f"# for `resjax tpu install`, later: {error}\n")
  _run(_checked(todo, command))


def _code() -> Code:
  return Code(Path.cwd(), _FOLDER.value, _WHEEL.value)


def _install() -> list[Step]:
  code = _code()
  code.check()
  # Another launcher may pack other code at the same time.
  name = f"resjax-{os.getuid()}-{_NAME.value}-{os.getpid()}"
  packed = str(Path(tempfile.gettempdir()) / name)
  return commands.install(_resource(), code, packed, _PYTHON.value, _EXTRA.value)


def _start(command: list[str]) -> list[Step]:
  launcher_args.require_command(command)
  otherwise = "say which folder all hosts share, --shared_folder=/PATH, and put it there"
  launcher_args.require_shared_workdir(command, [_SHARED.value], otherwise)
  environment = launcher_args.environment(_ENV.value)
  shown = commands.start(_resource(), redaction.words(command), redaction.mask(environment))
  return shell_steps.hide(commands.start(_resource(), command, environment), shown)


def _logs() -> tuple[str, ...]:
  script = remote.logs(_LINES.value)
  return commands.ssh(_resource(), script, _NODE.value, _WORKER.value)


def _status() -> list[Step]:
  return [
    Step("state of the queued resource", commands.state(_resource())),
    Step("state of the command on each host", commands.ssh(_resource(), remote.status())),
  ]


def _resume(command: list[str]) -> None:
  install = _install()
  setup = resume.Setup(_checked(_create(), command), install, _start(command))
  if _DRY_RUN.value:
    print("# If there is nothing yet, and again whenever the slice is SUSPENDED or FAILED:\n")
    delete = Step("delete what preemption left", commands.delete(_resource()))
    _run([delete, *setup.create, *setup.install, *setup.start])
    print("\n# Until it has ended on all hosts, which this tells:\n")
    _run(_status())
    return
  resume.keep_running(
    _resource(),
    hosts=_request().tpu.vms * _NUM_SLICES.value,
    setup=setup,
    go_on=launcher_args.same_again("launch.tpu"),
    poll_seconds=_POLL.value,
  )
  if _DELETE.value:
    _run([Step("delete the hosts", commands.delete(_resource()))])
  else:
    print(f"done; the hosts are still up, to end them: {commands.again('delete', _resource())}")


run = functools.partial(command.run, main, takes_words=True)

if __name__ == "__main__":
  run()
