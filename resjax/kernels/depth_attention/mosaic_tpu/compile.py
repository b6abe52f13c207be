"""The TPU kernels of depth attention compiled for chips that are not there; needs libtpu."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from resjax.kernels.depth_attention.mosaic_tpu import block
from resjax.kernels.depth_attention.mosaic_tpu import direct as mosaic_tpu
from resjax.kernels.depth_attention.mosaic_tpu.tiles import CHIPS, Pass, TpuTiles
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.sharding import Layout

# What libtpu asks a machine without a TPU about.
ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-16",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A kernel to look at.

  Attributes:
    name: `forward` or `backward`.
    fused: sources threaded, a direct read with the residual add and the following norm; or not.
    num_reads: S, of phase 1 of a depth block; 0: a direct read.
    num_tokens: T.
    width: D.
    num_slots: N.
    num_banked: how many of them are in a bank; all hold a source.
    dtype: of the sources.
  """

  name: str
  fused: bool
  num_reads: int = 0
  num_tokens: int = 8192
  width: int = 2048
  num_slots: int = 8
  num_banked: int = 0
  dtype: str = "bfloat16"

  @property
  def streams(self) -> int:
    """Arrays [T, D] that are read or written."""
    if self.num_reads:
      passes = {"forward": 1, "backward": 3 if self.fused else 2}[self.name]
      return passes * self.num_slots + self.num_reads
    if self.name == "forward":
      return self.num_slots + (3 if self.fused else 1)
    return (3 if self.fused else 2) * self.num_slots + 1


def compile_kernel(
  chip: str, case: Case, tile_sizes: TpuTiles | None = None
) -> jax.stages.Compiled:
  """Compiles a kernel for a chip that need not be there."""
  topology = topologies.get_topology_desc(CHIPS[chip].topology, "tpu")
  mesh = Mesh(np.array(topology.devices[:1]), ("data",))
  read = _read(case, Layout(mesh))

  def array(*shape, dtype):
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  operands = jax.tree.map(lambda a: array(*a.shape, dtype=a.dtype), _operands(case))
  if case.num_reads:
    return _compile_block(case, read, operands, array)
  if case.name == "forward":
    forward = jax.jit(lambda operands: mosaic_tpu.forward(read, operands, tile_sizes))
    return forward.lower(operands).compile()
  slots = case.num_slots, case.num_tokens
  stats = Stats(*(array(*shape, dtype=jnp.float32) for shape in (slots, slots, slots[1:])))
  operands, d_out = (
    operands._replace(addend=None),
    array(case.num_tokens, case.width, dtype=case.dtype),
  )
  d_sources = (operands.bank, operands.recent) if case.fused else None
  backward = jax.jit(
    lambda *args: mosaic_tpu.backward(read, *args, tile_sizes), donate_argnums=(3,)
  )
  return backward.lower(operands, stats, d_out, d_sources).compile()


def _compile_block(case: Case, read: Read, operands: Operands, array: Callable):
  """Compiles a kernel of phase 1, whose tile sizes are its own choice."""
  if case.name == "forward":
    return jax.jit(lambda operands: block.forward(read, operands)).lower(operands).compile()
  slots, reads = (case.num_slots, case.num_tokens), (case.num_reads, case.num_tokens)
  shapes = slots, (case.num_reads, *slots), reads, reads
  *stats, d_lse = (array(*shape, dtype=jnp.float32) for shape in shapes)
  d_out = array(*reads, case.width, dtype=case.dtype)
  d_sources = (operands.bank, operands.recent) if case.fused else None
  backward = jax.jit(lambda *args: block.backward(read, *args), donate_argnums=(4,))
  return backward.lower(operands, Stats(*stats), d_out, d_lse, d_sources).compile()


def _operands(case: Case) -> Operands:
  source, row, counts, bank = (
    jax.ShapeDtypeStruct(shape, dtype)
    for shape, dtype in (
      ((case.num_tokens, case.width), case.dtype),
      ((case.num_reads, case.width) if case.num_reads else (case.width,), jnp.float32),
      ((2,), jnp.int32),
      ((case.num_banked, case.num_tokens, case.width), case.dtype),
    )
  )
  recent = (source,) * (case.num_slots - case.num_banked)
  fused = case.fused and not case.num_reads
  addend, scale = (source if recent else None, row) if fused else (None, None)
  return Operands(bank if case.num_banked else None, recent, counts, row, addend, scale)


def _read(case: Case, layout: Layout) -> Read:
  adds = case.fused and not case.num_reads and case.num_banked < case.num_slots
  return Read(1, 1e-6, adds, case.fused, "mosaic_tpu", layout)


def work_of(chip: str, case: Case) -> Pass:
  """Returns the pass of a case on a chip."""
  read = _read(case, Layout())
  return Pass(
    case.name, chip, case.num_tokens, case.width, case.num_banked,
    case.num_slots - case.num_banked, case.dtype, read.adds,
    case.fused and not case.num_reads, read.threaded,
  )  # fmt: skip
