"""Traffic of the residual network as the compiler reports it, forward and reverse pass together.

Kernels count at the cost that they declare, everything else at the operands and results of XLA's
fusions. Branches are identities behind a barrier, which costs nothing and that no fusion crosses,
so that their outputs are written and read as those of matrix products would be; nothing is
recomputed.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from resjax.kernels.depth_attention import arg_specs
from resjax.kernels.depth_attention.arg_specs import NetworkShape
from resjax.kernels.depth_attention.bench import cases, networks
from resjax.sharding import Layout, MeshConfig, make_mesh
from resjax.typing import Array

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}


@dataclasses.dataclass(frozen=True)
class Traffic:
  """What one form of the network moves, in streams per sublayer.

  Attributes:
    arm: its name.
    reported: by the compiler.
    least: by the formulas of arg_specs.py for a fused form of its kind.
    temporary: what the program holds beside arguments and results, in streams of the whole network.
    seconds: of the compilation.
  """

  arm: str
  reported: float
  least: float
  temporary: float
  seconds: float


def main(out: Path, chip: str, shape: NetworkShape, chosen: Sequence[str]) -> None:
  """Prints a line per form as it is compiled, and writes network_bytes.json into `out`.

  Raises:
    ValueError: the chip is unknown.
  """
  layout = target(chip)
  about = {"target": chip, "jax": jax.__version__, "shape": dataclasses.asdict(shape)}
  print(f"{chip}, network {shape}: streams of 2 T D bytes per sublayer, forward + backward")
  print(f"{'arm':16}{'reported':>10}{'least':>8}{'temporary':>11}{'compiled in':>13}")
  rows = []
  for name, least, walk in forms(shape, layout):
    if name in chosen:
      row = _traffic(name, least, walk, shape, layout)
      print(
        f"{row.arm:16}{row.reported:10.2f}{row.least:8.2f}{row.temporary:11.1f}"
        f"{row.seconds:11.1f} s",
        flush=True,
      )
      rows.append(dataclasses.asdict(row))
  out.mkdir(parents=True, exist_ok=True)
  (out / "network_bytes.json").write_text(json.dumps(about | {"rows": rows}, indent=1))


def target(chip: str) -> Layout:
  """Returns a layout of one device to compile for: a TPU that need not be there, or the CPU.

  Raises:
    ValueError: the chip is unknown, or libtpu is missing.
  """
  if chip == "cpu":
    return Layout(make_mesh(MeshConfig(), jax.devices("cpu")[:1]))
  if chip not in TOPOLOGIES:
    raise ValueError(f"chip {chip!r} is unknown; allowed: cpu, {', '.join(TOPOLOGIES)}")
  if find_spec("libtpu") is None:
    raise ValueError(f"compiling for {chip} needs libtpu: pip install -e '.[tpu]', or --chips cpu")
  devices = topologies.get_topology_desc(TOPOLOGIES[chip], platform="tpu").devices
  return Layout(make_mesh(MeshConfig(), devices[:1]))


def forms(shape: NetworkShape, layout: Layout) -> list[tuple[str, int, Callable[..., Array]]]:
  """Returns name, least streams and forward pass of every form."""
  direct = arg_specs.direct_forward(shape) + arg_specs.direct_backward(shape)
  reads = shape.num_sublayers + shape.final_read
  plain = reads * (arg_specs.residual_forward() + arg_specs.residual_backward())
  by = partial(networks.reader_by, layout=layout)
  return [
    ("xla_stack", direct, partial(networks.walk, shape, networks.stack_reader)),
    ("xla_no_stack", direct, partial(networks.walk, shape, by("reference"))),
    ("direct", direct, partial(networks.walk, shape, by(None))),
    ("residual_norm", plain, partial(networks.plain_walk, shape)),
  ]


def _traffic(name, least, walk, shape: NetworkShape, layout: Layout) -> Traffic:
  sharding = SingleDeviceSharding(layout.mesh.devices.flat[0])

  def array(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)

  rows = array(shape.num_sublayers + 1, shape.d_model)
  tokens = array(shape.num_tokens, shape.d_model, dtype=jnp.dtype(cases.DTYPE))

  def both(inputs, d_out):
    out, pullback = jax.vjp(walk, *inputs)
    return out, pullback(d_out)

  start = time.perf_counter()
  compiled = jax.jit(both).lower((rows, rows, (tokens,)), tokens).compile()
  seconds = time.perf_counter() - start
  stream = arg_specs.stream_bytes(shape.num_tokens, shape.d_model, cases.DTYPE)
  per_sublayer = stream * shape.num_sublayers
  moved = compiled.cost_analysis()["bytes accessed"] / per_sublayer
  held = compiled.memory_analysis().temp_size_in_bytes / stream
  return Traffic(name, moved, least / shape.num_sublayers, held, seconds)
