"""Times checkpoints: how long a save holds up its caller and takes in all; restoring; verifying.

  resjax bench checkpoint                       (500 MB, in a temporary folder)
  resjax bench checkpoint --megabytes=8 --folder=runs/bench

The state consists of float32 arrays of random bits, all finite, which no compression makes much
smaller, sharded over all devices. The first save compiles the checksums, and is reported
separately. The command prints one JSON object.
"""

import dataclasses
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import grain
import jax
import jax.numpy as jnp
from absl import flags
from etils import epath

from configs import base
from resjax.base import Array, PyTree, checksums, manifest
from resjax.base.sharding import MeshConfig, Rules, ShardingConfig, make_layout
from resjax.cli import command
from resjax.train import GuardState, TrainState
from resjax.train.checkpoint import CheckpointConfig, Checkpoints

_MEGABYTES = flags.DEFINE_integer("megabytes", 500, "Size of the state.", lower_bound=1)
_ARRAYS = flags.DEFINE_integer("arrays", 48, "Number of arrays in the state.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Number of saves after the first.", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", "", "Folder to write to; default: a temporary one.")

COLUMNS = 1024


def main() -> None:
  """Prints the seconds of each operation, and the bytes of the state."""
  with tempfile.TemporaryDirectory(dir=_FOLDER.value or None) as folder:
    report = _measure(epath.Path(folder))
  print(json.dumps(report, indent=2))


def _measure(folder: epath.Path) -> dict:
  state, batches = _state(), iter(grain.MapDataset.range(10**6).to_iter_dataset())
  config = CheckpointConfig(**base.checkpoint() | {"keep_last": 1})
  blocking, total = [], []
  with Checkpoints(folder / "checkpoints", config, batch_size=1) as checkpoints:
    for step in range(1, _REPEATS.value + 2):
      start = time.perf_counter()
      checkpoints.save(step, state, batches)
      blocking.append(time.perf_counter() - start)
      checkpoints.wait()
      total.append(time.perf_counter() - start)
    opening_seconds = checkpoints.opening_seconds
  abstract = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )
  restore = {}
  for verify in (False, True):
    config = dataclasses.replace(config, verify=verify)
    with Checkpoints(folder / "checkpoints", config, batch_size=1) as checkpoints:
      restore[verify] = _seconds(functools.partial(checkpoints.restore, abstract, batches))
  written = folder / "checkpoints" / str(step)
  return {
    "device": jax.devices()[0].device_kind,
    "devices": jax.device_count(),
    "bytes": sum(x.nbytes for x in jax.tree.leaves(state)),
    "first_blocking_seconds": blocking[0],
    "blocking_seconds": statistics.median(blocking[1:]),
    "blocking_seconds_worst": max(blocking[1:]),
    "total_seconds": statistics.median(total[1:]),
    "opening_seconds": opening_seconds / len(total),
    "restore_seconds": restore[False],
    "restore_and_verify_seconds": restore[True],
    "checksums_seconds": _seconds(lambda: checksums.record(state)),
    "files_seconds": _seconds(lambda: manifest.check(written)),
  }


def _seconds(work: Callable[[], PyTree]) -> float:
  start = time.perf_counter()
  jax.block_until_ready(work())
  return time.perf_counter() - start


def _state() -> TrainState:
  rules = ShardingConfig("fsdp", Rules(**base.sharding()["fsdp"]))
  layout = make_layout(MeshConfig(data=1, fsdp=-1), rules)
  rows = _MEGABYTES.value * 10**6 // (4 * COLUMNS * _ARRAYS.value)
  rows = -(-rows // jax.device_count()) * jax.device_count()

  @functools.partial(jax.jit, out_shardings=layout.sharding("embed_param", None))
  def create(key: Array) -> Array:
    bits = jax.random.bits(key, (rows, COLUMNS), jnp.uint32)
    bits &= ~jnp.uint32(1 << 30)  # the top bit of the exponent: no value is infinite or NaN
    return jax.lax.bitcast_convert_type(bits, jnp.float32)

  keys = jax.random.split(jax.random.key(0), _ARRAYS.value)
  arrays = {f"array_{number}": create(key) for number, key in enumerate(keys)}
  step = jax.device_put(jnp.zeros((), jnp.int32), layout.sharding())
  return jax.block_until_ready(TrainState(step, arrays, (), GuardState.zeros()))


if __name__ == "__main__":
  command.run(main)
