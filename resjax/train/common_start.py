"""What the processes of a run do before they train: check that they are alike, and build data."""

import hashlib
import json
import socket
from collections import Counter
from collections.abc import Mapping, Sequence

import jax
from rich.console import Console

from resjax.base import Damaged, processes
from resjax.data import Check, DataConfig, DatasetSummary, build_and_show, dataset
from resjax.train.runs.config import Run
from resjax.train.runs.environment import package_version

_ALIKE = ("resjax", "jax", "jaxlib", "libtpu")


def introduce(run: Run) -> None:
  """Prints what each process of a run is, and checks that all have the same config and packages.

  A run of one process does nothing here.

  Raises:
    ValueError: a process has another config, or another version of a package.
  """
  if jax.process_count() == 1:
    return
  own = {name: package_version(name) for name in _ALIKE} | {"config": _hash(run.resolved)}
  host = socket.gethostname()
  devices = jax.local_devices()
  print(
    f"process {jax.process_index()} of {jax.process_count()} on {host}: {len(devices)} of "
    f"{jax.device_count()} devices ({devices[0].device_kind}); "
    + ", ".join(f"{name} {value}" for name, value in own.items() if value),
    flush=True,
  )
  found = processes.gather("identity", {"host": host, "identity": own}) or []
  problem = processes.first("alike", lambda: _odd_one(found))
  if problem:
    raise ValueError(problem)


def _odd_one(processes: Sequence[Mapping]) -> str | None:
  """Returns a line that says which process differs from most others, and in what; or None."""
  for key in processes[0]["identity"]:
    values = [process["identity"][key] for process in processes]
    # Where two values are as common, that of process 0 counts as usual.
    usual = Counter(values).most_common(1)[0][0]
    for index, value in enumerate(values):
      if value != usual:
        what = "another config" if key == "config" else f"another {key}"
        remedy = "the same --config flags" if key == "config" else "the same packages"
        return (
          f"process {index} on {processes[index]['host']} has {what} than the others: {value}, not "
          f"{usual}; start all processes with {remedy}"
        )
  return None


def build_data(config: DataConfig, console: Console, check: Check | None = None) -> DatasetSummary:
  """Returns the data of a run, which process 0 builds and the others read.

  A process that does not find them, because its host has a disk of its own, builds them too.

  Args:
    config: the data.
    console: where to print.
    check: is asked in process 0 before anything is built, see `dataset.build`.

  Raises:
    ValueError: `check` refuses them; a corpus is missing, empty or malformed; or a process has
      built other data.
  """
  built = build_and_show(config, console, check) if jax.process_index() == 0 else None
  mark, checked = processes.first("data", lambda: built and _marks(built))
  summary = built or _found(config, mark, checked) or dataset.build(config)
  if summary.fingerprint != mark:
    raise ValueError(
      f"process {jax.process_index()} on {socket.gethostname()} has built other data than process "
      "0: config.data.corpora has other text there; set config.data.root to a folder that all "
      f"hosts share, or copy that of process 0 and set config.data.built={mark}"
    )
  return summary


def _marks(built: DatasetSummary) -> tuple[str, list[str]]:
  return built.fingerprint, dataset.stamps(built)


def _found(config: DataConfig, mark: str, checked: list[str]) -> DatasetSummary | None:
  """Returns built data; None where they are not, or are damaged, so that they have to be built."""
  try:
    return dataset.find(config.root, mark, config.verify, checked)
  except Damaged:
    return None


def _hash(config: Mapping) -> str:
  canonical = json.dumps(config, sort_keys=True).encode()
  return hashlib.blake2b(canonical, digest_size=6).hexdigest()
