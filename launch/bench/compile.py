"""Measures compile time and memory of the training step: by depth, and in a Python loop.

  resjax bench compile                        (for the CPU)
  resjax bench compile --topology=v5e:2x4     (for a TPU that need not be there)

Each case is compiled `--rounds` times in turn with the others, and its shortest time counts. The
command prints one JSON object. A topology needs the extra `tpu` and no TPU.
"""

import json
import time
from collections.abc import Sequence

import jax
from absl import flags

from configs import base
from launch import topology
from resjax.aot import absent_devices, memory_stats, program_text
from resjax.cli import command
from resjax.train import Program, experiment, program

_ROUNDS = flags.DEFINE_integer("rounds", 5, "How often each case is compiled.", lower_bound=1)

_LOOPED = ("mhc", "hyper_connections", "deep_delta")  # systems that compile longest in a loop
# The combinator, the number of layers, and what runs them, as in config.model.depth.
_CASES = {
  "standard-24": ("standard", 24, "scan"),
  "block_attn_res-24": ("block_attn_res", 24, "scan"),
  "block_attn_res-48": ("block_attn_res", 48, "scan"),
} | {f"{name}-loop": (name, 4, "loop") for name in ("standard", *_LOOPED)}


def main() -> None:
  """Prints seconds, instructions and temporary bytes of each case, and the ratios of seconds."""
  devices = None
  if topology.FLAG.value:
    devices = absent_devices.describe(topology.FLAG.value).devices
  found: dict[str, list[dict[str, float]]] = {name: [] for name in _CASES}
  for _ in range(_ROUNDS.value):
    for name, case in _CASES.items():
      found[name].append(_compile(*case, devices))
  best = {name: min(results, key=lambda r: r["seconds"]) for name, results in found.items()}
  seconds = {name: result["seconds"] for name, result in best.items()}
  report = {
    "target": topology.FLAG.value or "cpu",
    "jax": jax.__version__,
    "cases": best,
    "block_attn_res over standard": seconds["block_attn_res-24"] / seconds["standard-24"],
    "twice the layers": seconds["block_attn_res-48"] / seconds["block_attn_res-24"],
    "loop of 4 layers over standard": {
      name: seconds[f"{name}-loop"] / seconds["standard-loop"] for name in _LOOPED
    },
  }
  print(json.dumps(report, indent=2))


def _compile(
  name: str, num_layers: int, depth: str, devices: Sequence[jax.Device] | None
) -> dict[str, float]:
  small = small_program(name, num_layers, 3, devices, depth=depth)
  jax.clear_caches()
  start = time.perf_counter()
  compiled = small.lower_train_step().compile()
  seconds = time.perf_counter() - start
  return {
    "seconds": seconds,
    "instructions": program_text(compiled).count(" = "),
    "temporary_bytes": memory_stats(compiled).temp_size_in_bytes,
  }


def small_program(
  name: str,
  num_layers: int,
  layers_per_block: int,
  devices: Sequence[jax.Device] | None,
  depth: str = "scan",
) -> Program:
  """Returns the programs of a small decoder.

  Args:
    name: the name of the combinator.
    num_layers: L.
    layers_per_block: the layers of a depth block of block_attn_res.
    devices: the devices to compile for; None for the devices of this machine.
    depth: `scan` or `loop`, a Python loop over layers.
  """
  config = base.get_config()
  config.model.update(num_layers=num_layers, d_model=512, num_heads=4, num_kv_heads=4, mlp_dim=1536)
  config.model.depth = depth
  config.model.residual.name = name
  config.model.residual.block_attn_res.layers_per_block = layers_per_block
  return program.build(experiment.build(config, devices))


if __name__ == "__main__":
  command.run(main)
