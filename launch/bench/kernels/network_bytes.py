"""Reads the memory traffic of the residual network, forward and reverse pass, off the compiler.

A kernel counts with the cost that it declares, everything else with the operands and results of
XLA's fusions. A branch flips the sign between two barriers, which cost nothing and which no fusion
crosses. Its output and the cotangent of its input are thus arrays of their own, as they would be
around a matrix product. The branches take 4 passes per sublayer, which are subtracted because they
do not belong to the residual path. If a branch were the identity, two cotangents of a sublayer
would be one array, and a kernel that adds into one of them would have to copy it. Nothing is
recomputed.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from launch.bench.kernels import arg_specs, cases, walks
from launch.bench.kernels.arg_specs import NetworkShape
from resjax.aot import absent_devices, memory_stats
from resjax.base import Array, PyTree
from resjax.base.hardware import TPU_CHIPS, slices
from resjax.base.sharding import Layout, MeshConfig, make_mesh

# On-chip memory in MiB that is left for XLA to plan with. With more XLA would move arrays of this
# network there ahead of a kernel that reads them, and count their bytes twice; the smallest such
# array, the remainders of the outputs of a depth block, has 8 MiB.
PLANNED = 6

BRANCH_PASSES = 4  # what `sign_flip` takes in forward and reverse pass


@dataclasses.dataclass(frozen=True)
class Traffic:
  """The traffic of one form of the network, in passes per sublayer.

  Attributes:
    arm: the name of the form.
    reported: what the compiler reports, without the branches.
    least: what the formulas of arg_specs.py give for a fused form of this kind.
    temporary: what the program holds beside arguments and results, in passes of the whole network.
    seconds: how long the compilation took.
  """

  arm: str
  reported: float
  least: float
  temporary: float
  seconds: float


def main(out: Path, chip: str, layout: Layout, shape: NetworkShape, chosen: Sequence[str]) -> None:
  """Compiles and prints form after form, and writes network_bytes_CHIP.json into `out`."""
  about = {"target": chip, "jax": jax.__version__, "shape": dataclasses.asdict(shape)}
  print(f"{chip}, network {shape}; passes of 2 T D bytes per sublayer, forward + backward")
  print(f"{'arm':16}{'reported':>10}{'least':>8}{'temporary':>11}{'compiled in':>13}")
  rows = []
  least = walks.least_passes(shape)
  options: dict[str, str | bool] | None = None
  if chip in TPU_CHIPS:
    options = {"xla_tpu_scoped_vmem_limit_kib": str(TPU_CHIPS[chip].vmem // 1024 - PLANNED * 1024)}
  for name, form in walks.forms(shape, layout, walks.sign_flip).items():
    if name in chosen:
      row = _traffic(name, sum(least[name]), form, shape, layout, options)
      print(
        f"{row.arm:16}{row.reported:10.2f}{row.least:8.2f}{row.temporary:11.1f}"
        f"{row.seconds:11.1f} s",
        flush=True,
      )
      rows.append(dataclasses.asdict(row))
  out.mkdir(parents=True, exist_ok=True)
  (out / f"network_bytes_{chip}.json").write_text(json.dumps(about | {"rows": rows}, indent=1))


def target(chip: str) -> Layout:
  """Returns a layout of one device to compile for: a TPU that need not be there, or the CPU.

  Raises:
    ValueError: the chip is unknown, or libtpu is missing.
  """
  if chip == "cpu":
    return Layout(make_mesh(MeshConfig(), jax.devices("cpu")[:1]))
  if chip not in slices.GENERATIONS:
    allowed = ", ".join(slices.GENERATIONS)
    raise ValueError(f"chip {chip!r} is unknown; allowed: cpu, {allowed}")
  if find_spec("libtpu") is None:
    raise ValueError(f"compiling for {chip} needs libtpu: pip install -e '.[tpu]', or --chips=cpu")
  devices = absent_devices.describe(slices.GENERATIONS[chip].host).devices
  return Layout(make_mesh(MeshConfig(), devices[:1]))


def _traffic(
  name: str,
  least: float,
  form: Callable[..., Array],
  shape: NetworkShape,
  layout: Layout,
  options: dict[str, str | bool] | None,
) -> Traffic:
  sharding = SingleDeviceSharding(layout.mesh.devices.flat[0])

  def array(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)

  rows = array(shape.num_sublayers + 1, shape.d_model)
  tokens = array(shape.num_tokens, shape.d_model, dtype=jnp.dtype(cases.DTYPE))

  def both(inputs: tuple[PyTree, ...], d_out: Array) -> tuple[Array, PyTree]:
    out, pullback = jax.vjp(form, *inputs)
    return out, pullback(d_out)

  start = time.perf_counter()
  compiled = jax.jit(both).lower((rows, rows, (tokens,)), tokens).compile(options)
  seconds = time.perf_counter() - start
  one_pass = arg_specs.pass_bytes(shape.num_tokens, shape.d_model, cases.DTYPE)
  per_sublayer = one_pass * shape.num_sublayers
  costs = compiled.cost_analysis()
  if costs is None:
    raise ValueError("the compiler of this platform does not tell what memory a program moves")
  moved = costs["bytes accessed"] / per_sublayer - BRANCH_PASSES
  held = memory_stats(compiled).temp_size_in_bytes / one_pass
  return Traffic(name, moved, least / shape.num_sublayers, held, seconds)
