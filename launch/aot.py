"""Compiles the training step for a TPU slice that need not be there: does it fit, what does it do.

  python -m launch.aot --config=configs/llama_1p3b.py --topology=v5e-256
  python -m launch.aot --config=configs/llama_7b.py --topology=v5e:16x16 --num_slices=2
  python -m launch.aot --config=configs/llama_7b.py --topology=v6e-256 --search

The program is the one that launch.train runs with the same settings. Needs the extra `tpu` and no
TPU. Prints a table, with --json one JSON object, and writes that to --out. A config that does not
fit: what is missing and what to change; exit code 1. --search bisects over compilations for the
cheapest recomputation and the most rows per chip that fit, the batch staying as it is.
"""

import dataclasses
import json
import sys
from pathlib import Path

import jax
from absl import flags
from rich.console import Console

from launch import cli, topology
from resjax import experiment
from resjax.aot import absent_devices, compile_step, suggest_settings, table
from resjax.aot.absent_devices import AbsentSlices
from resjax.aot.memory import GIB, DoesNotFitError
from resjax.runs.config import Run

_CONFIG = cli.define_config("What would be trained.")
_SLICES = flags.DEFINE_integer("num_slices", 1, "Slices; config.mesh.data joins.", lower_bound=1)
_SEARCH = flags.DEFINE_bool("search", False, "Find the recomputation and the microbatch that fit.")
_JSON = flags.DEFINE_bool("json", False, "Print JSON instead of a table.")
_OUT = flags.DEFINE_string("out", "", "File for the JSON.")


def main() -> None:
  """Prints the report, or why the config does not fit."""
  config = cli.config_value(_CONFIG)
  if not topology.FLAG.value:
    raise ValueError("no topology; give one, for example --topology=v5e-256")
  target = absent_devices.describe(topology.FLAG.value, _SLICES.value)
  run = experiment.build(config, target.devices)
  console = Console(stderr=_JSON.value)
  fits, report = (_search if _SEARCH.value else _once)(run, target, console)
  text = json.dumps(_head(run, target) | report, indent=2)
  if _JSON.value:
    print(text)
  if _OUT.value:
    Path(_OUT.value).parent.mkdir(parents=True, exist_ok=True)
    Path(_OUT.value).write_text(text + "\n")
  if not fits:
    sys.exit(1)


def _once(run: Run, target: AbsentSlices, console: Console) -> tuple[bool, dict]:
  table.show_target(run, target, console)
  try:
    report = compile_step.compile_step(run)
  except DoesNotFitError as error:
    return False, _refused(run, target, error, console)
  table.show_report(report, target, console)
  return True, {"fits": True, **dataclasses.asdict(report)}


def _search(run: Run, target: AbsentSlices, console: Console) -> tuple[bool, dict]:
  table.show_target(run, target, console)
  tries = []
  for one in suggest_settings.search(run, compile_step.compile_step):
    table.show_try(one, console)
    tries.append(one)
  best = suggest_settings.best(tries)
  if best is None:
    last = tries[-1]  # full recomputation, one row
    return False, _refused(last.run, target, last.outcome, console)
  table.show_report(best.outcome, target, console)
  console.print(f"use {best.flags}", soft_wrap=True, highlight=False)
  found = {"fits": True, "flags": best.flags, "tries": {one.flags: one.fits for one in tries}}
  return True, found | dataclasses.asdict(best.outcome)


def _refused(run: Run, target: AbsentSlices, error: DoesNotFitError, console: Console) -> dict:
  changes = suggest_settings.suggestions(run, error, target.num_slices)
  table.show_refusal(error, changes, console)
  return {
    "fits": False,
    "required": error.required,
    "available": error.available,
    "shortfall": error.shortfall,
    "arguments": dataclasses.asdict(error.arguments),
    "changes": changes,
  }


def _head(run: Run, target: AbsentSlices) -> dict:
  return {
    "topology": target.tpu.name,
    "num_slices": target.num_slices,
    "devices": run.layout.mesh.size,
    "device_kind": target.devices[0].device_kind,
    "mesh": dict(run.layout.mesh.shape),
    "residual": run.decoder.residual.name,
    "jax": jax.__version__,
    "hbm_available": target.tpu.generation.chip.available_memory * GIB,
  }


if __name__ == "__main__":
  cli.run(main)
