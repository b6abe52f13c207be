"""Compiles the training step for TPUs or GPUs that need not be there, and tells whether it fits.

  resjax aot --config=llama_1p3b --topology=v5e-256
  resjax aot --config=llama_7b --topology=v5e:16x16 --num_slices=2
  resjax aot --config=llama_7b --topology=v6e-256 --search
  resjax aot --config=llama_1p3b --topology=v5p-8 --devices=1 --passes \\
    --config.train.batch_size=4 --config.mesh.fsdp=1
  resjax aot --config=gpt2_124m --topology=h100-8

The program is the one that resjax train runs with the same settings, compiled with the same options
(config.train.compiler_options). The command needs the extra `tpu` and no TPU, or for GPUs the extra
`cuda_aot` and no GPU. It prints tables of memory and operations, or with --json one JSON object,
which --out writes to a file. If the config does not fit, it prints how much memory is missing and
what to change, compiles with these changes until it fits, and exits with 1. A mesh that is for more
devices is made smaller, and what training needs for that is printed. --search compiles repeatedly
to find the cheapest recomputation and the most rows per chip that fit; the batch stays as it is.

In a checkout it also reads the compiled program, which takes what is not in the wheel: matrix
products with loops times their trips, and what devices exchange. There --passes counts the memory
traffic of the step, by part, beside that of the same model with the residual `standard`.
"""

import dataclasses
import functools
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console

from launch import topology
from resjax.aot import (
  GIB,
  AbsentSlices,
  DoesNotFitError,
  absent_devices,
  compile_step,
  derive_mesh,
  suggest_settings,
  table,
  verify_changes,
)
from resjax.base import ranges, terminal
from resjax.base.sharding import MeshConfig
from resjax.cli import command
from resjax.train import experiment
from resjax.train.runs import Run

_CONFIG = command.define_config("The config that would be trained.")
_SLICES = flags.DEFINE_integer(
  "num_slices", 1, "Slices that config.mesh.data joins.", lower_bound=1
)
_SEARCH = flags.DEFINE_bool("search", False, "Search for recomputation and microbatches that fit.")
_PASSES = flags.DEFINE_bool(
  "passes", False, "In a checkout: count memory traffic, also of `standard`."
)
_DEVICES = flags.DEFINE_integer(
  "devices", 0, "Devices of the slices that are used; 0: all.", lower_bound=0
)
_JSON = flags.DEFINE_bool("json", False, "Print JSON; the tables go to the standard error.")
_OUT = flags.DEFINE_string("out", "", "File to write the JSON to.")

_Outcome = compile_step.Report | DoesNotFitError
_READS_PROGRAMS = find_spec("launch.bench") is not None  # not in the wheel
_CLONE = "clone the repository and run `pip install -e .` there"


def main() -> None:
  """Prints memory, FLOPs and traffic of the compiled step, or why the config does not fit."""
  config = command.config_value(_CONFIG)
  if not topology.FLAG.value:
    raise ValueError("no topology; give one, for example --topology=v5e-256")
  if _PASSES.value and not _READS_PROGRAMS:
    raise ValueError(f"--passes reads the compiled program, which takes a checkout: {_CLONE}")
  target = absent_devices.describe(topology.FLAG.value, _SLICES.value)
  target = dataclasses.replace(target, devices=target.devices[: _DEVICES.value or None])
  console = terminal.console(stderr=_JSON.value)
  mesh_flags = _derive_mesh(config, target, console)
  run = experiment.build(config, target.devices)
  table.show_target(run, target, console)
  run, outcome, found = (_search if _SEARCH.value else _once)(run, config, console)
  fits = isinstance(outcome, compile_step.Report)
  if isinstance(outcome, compile_step.Report):
    found |= _known(run, outcome, config, target, console)
  else:
    found |= _refused(run, config, target, outcome, console)
  report = _head(run, target) | {"fits": fits, "mesh_flags": mesh_flags} | found
  text = json.dumps(report, indent=2)
  if fits and _SEARCH.value:
    console.print(f"use {found['flags']}", soft_wrap=True, highlight=False)
  if _JSON.value:
    print(text)
  if _OUT.value:
    Path(_OUT.value).parent.mkdir(parents=True, exist_ok=True)
    Path(_OUT.value).write_text(text + "\n")
  if not fits:
    sys.exit(1)


def _derive_mesh(config: ConfigDict, target: AbsentSlices, console: Console) -> str:
  """Sets the entries of the mesh that follow from the devices; returns them as flags."""
  given = ranges.read(MeshConfig, config.mesh.to_dict(), "config.mesh")
  mesh = derive_mesh.derive(given, len(target.devices), target.num_slices)
  flags_ = derive_mesh.flags(mesh, given)
  if flags_:
    config.mesh.update(dataclasses.asdict(mesh))
    said = f"the mesh of the config is for other devices; {len(target.devices)} have {flags_}"
    console.print(f"{said}, which training needs too", soft_wrap=True, highlight=False)
  return flags_


def _once(run: Run, config: ConfigDict, console: Console) -> tuple[Run, _Outcome, dict]:
  try:
    return run, compile_step.compile_step(run), {}
  except DoesNotFitError as error:
    return run, error, {}


def _search(run: Run, config: ConfigDict, console: Console) -> tuple[Run, _Outcome, dict]:
  """Writes the settings that it chooses into the config, too."""
  tries = []
  for one in suggest_settings.search(run, compile_step.compile_step):
    table.show_try(one, console)
    tries.append(one)
  chosen = suggest_settings.best(tries) or tries[-1]  # the last one: full recomputation, one row
  config.model.remat, config.train.microbatches = chosen.remat, chosen.microbatches
  found = {"flags": chosen.flags, "tries": {one.flags: one.fits for one in tries}}
  return chosen.run, chosen.outcome, found if chosen.fits else {}


def _known(
  run: Run,
  report: compile_step.Report,
  config: ConfigDict,
  target: AbsentSlices,
  console: Console,
) -> dict:
  """Prints what is known of a step that fits, and returns it for the JSON object."""
  table.show_report(report, target, console)
  known = dataclasses.asdict(report)
  text = known.pop("text")
  if not _READS_PROGRAMS:
    what = "matrix products, exchanges and passes of the compiled program take a checkout"
    terminal.say(console, f"{what}: {_CLONE}")
    return known
  from launch.bench.program import read_step, show_step

  step = read_step.read_step(text, run)
  show_step.show_step(step, console)
  known |= dataclasses.asdict(step)
  known["flops"]["matrices"] = known.pop("matrix_flops")
  if _PASSES.value:
    config = config.copy_and_resolve_references()
    config.model.residual.name = "standard"
    console.print("compiling the same model with the residual standard", highlight=False)
    plain = experiment.build(config, target.devices)
    standard = read_step.read_step(compile_step.compile_step(plain).text, plain).passes
    show_step.show_passes(run.decoder.residual.name, step, standard, console)
    known["standard_passes"] = dataclasses.asdict(standard)
  return known


def _refused(
  run: Run, config: ConfigDict, target: AbsentSlices, error: DoesNotFitError, console: Console
) -> dict:
  """Prints what to change, and compiles with these changes to see whether they suffice."""
  changes = suggest_settings.suggestions(run, error, target.num_slices)
  table.show_refusal(error, changes, console)

  def attempt(settings: dict[str, int | str]) -> compile_step.Report:
    changed = config.copy_and_resolve_references()
    changed.update_from_flattened_dict(settings)
    return compile_step.compile_step(experiment.build(changed, target.devices))

  verified = verify_changes.verify(changes, attempt)
  if verified:
    table.show_verified(verified, console)
  return {
    "required": error.required,
    "available": error.available,
    "shortfall": error.shortfall,
    "arguments": dataclasses.asdict(error.arguments),
    "changes": changes,
    "fits_with": verified.flags if verified and verified.fits else None,
  }


def _head(run: Run, target: AbsentSlices) -> dict:
  return {
    "topology": target.part.name,
    "num_slices": target.num_slices,
    "devices": run.layout.mesh.size,
    "device_kind": target.devices[0].device_kind,
    "mesh": dict(run.layout.mesh.shape),
    "residual": run.decoder.residual.name,
    "compiler_options": dict(run.compiler_options),
    "jax": jax.__version__,
    "hbm_available": target.part.chip.available_memory * GIB,
  }


run = functools.partial(command.run, main)

if __name__ == "__main__":
  run()
