"""What a launcher checks of the model that it will train: config, mesh, batch, and memory."""

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from resjax.base import ranges, redaction
from resjax.base.hardware import GPU_TARGETS, NODE_GPUS
from resjax.data import Finding
from resjax.train.runs import Run


@dataclasses.dataclass(frozen=True)
class Hardware:
  """What a command will run on.

  Attributes:
    devices: the number of JAX devices; 0: nobody has said.
    topology: the name by which resjax aot knows them, or one slice of them; empty: it knows none.
    num_slices: how many such slices there are.
    shared: folders that all hosts see, and this machine perhaps not.
    sees_here: whether the hosts see the files of this machine.
  """

  devices: int
  topology: str = ""
  num_slices: int = 1
  shared: tuple[str, ...] = ()
  sees_here: bool = False


def check(
  config: ConfigDict, place: Path, hardware: Hardware, compiles: bool, words: Sequence[str]
) -> Iterator[Finding]:
  """Yields findings about config, mesh and memory.

  Args:
    config: the config of the run.
    place: the file of the config.
    hardware: the devices and hosts of the run.
    compiles: whether the step is compiled, where the compiler for the devices is installed.
    words: the flags of the command line that belong to the config.
  """
  # These take seconds, for which mistakes on the command line need not wait.
  from resjax.aot import absent_devices
  from resjax.train import experiment

  missing = f"a --gpu of {', '.join(GPU_TARGETS)}, and 1, 2, 4 or a multiple of {NODE_GPUS} of them"
  if not hardware.devices:
    config = config.copy_and_resolve_references()
    config.mesh.update(data=1, fsdp=1, tensor=1, sequence=1)
  try:
    if hardware.topology:
      missing = absent_devices.missing_for(hardware.topology) or ""
    if missing:
      devices: Sequence[jax.Device] = _absent_devices(hardware.devices or 1)
    else:
      devices = absent_devices.describe(hardware.topology, hardware.num_slices).devices
    run = experiment.build(config, devices)
    _check_slices(run, hardware.num_slices)
  except ValueError as error:
    hint = _mesh_hint(config, hardware)
    where = f" on {hardware.devices} devices" * bool(hardware.devices)
    yield Finding("config", False, f"{place}{where}: {error}{hint}")
    return
  yield Finding("config", True, f"{place}, residual {run.decoder.residual.name}")
  if not hardware.devices:
    yield Finding("mesh", None, "how many devices there are is not known here; give --topology")
    return
  yield Finding("mesh", True, _mesh(run))
  yield _fit(run, hardware, "--nofit" if not (missing or compiles) else missing, words)


def _mesh_hint(config: ConfigDict, hardware: Hardware) -> str:
  """Returns which mesh these devices have, if the config's is for others."""
  from resjax.aot import derive_mesh
  from resjax.base.sharding import MeshConfig

  try:
    given = ranges.read(MeshConfig, config.mesh.to_dict(), "config.mesh")
  except ValueError:
    return ""
  mesh = derive_mesh.derive(given, hardware.devices, hardware.num_slices)
  flags = derive_mesh.flags(mesh, given)
  return f"; set {flags}" if flags else ""


def _check_slices(run: Run, num_slices: int) -> None:
  data = run.layout.mesh.shape["data"]
  if data % num_slices:
    raise ValueError(
      f"config.mesh.data={data} is not divisible by the {num_slices} slices; set config.mesh.data "
      f"to a multiple of {num_slices}"
    )


def _mesh(run: Run) -> str:
  shape = " × ".join(f"{axis} {n}" for axis, n in run.layout.mesh.shape.items() if n > 1)
  rows = run.train.batch_size // run.layout.num_shards("batch") // run.train.microbatches
  return (
    f"{run.layout.mesh.size} devices: {shape or 'all axes 1'}; {rows} rows per device and "
    f"microbatch, {run.train.microbatches} microbatches"
  )


def _fit(run: Run, hardware: Hardware, why_not: str, words: Sequence[str]) -> Finding:
  """Returns whether the step fits, which takes a compilation, or how to find out."""
  from resjax.aot import GIB, DoesNotFitError, compile_step

  topology = f"--topology={hardware.topology or 'h100-8'}"
  several = [f"--num_slices={hardware.num_slices}"] * (hardware.num_slices > 1)
  aot = shlex.join(["resjax", "aot", *redaction.words(words), topology, *several])
  if why_not:
    because = why_not if why_not == "--nofit" else f"that needs {why_not}"
    return Finding("fit", None, f"{because}; look, on any machine, with: {aot}")
  print(f"#   compiling the step for {hardware.topology}; --nofit leaves it out", flush=True)
  try:
    memory = compile_step.compile_step(run).memory
  except DoesNotFitError as error:
    return Finding("fit", False, f"the step {error}; find what fits with: {aot} --search")
  return Finding("fit", True, f"the step needs {memory.total / GIB:.2f} GiB of HBM per device")


def _absent_devices(count: int) -> list[jax.Device]:
  """Returns `count` devices of the CPU, which show whether mesh and batch divide."""
  counted = r"--xla_force_host_platform_device_count=\d+"
  os.environ["XLA_FLAGS"] = re.sub(counted, "", os.environ.get("XLA_FLAGS", ""))
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", count)
  return jax.devices()
