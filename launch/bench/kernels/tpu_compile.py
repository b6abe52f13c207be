"""Compiles the TPU kernels of depth reads for chips that need not be there, with libtpu."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from launch.bench.kernels import arg_specs
from resjax.aot import absent_devices
from resjax.base.hardware import slices
from resjax.base.sharding import Layout
from resjax.kernels.depth_attention import OPERATIONS, MergeOperands, Operands, Read, Stats
from resjax.kernels.depth_attention.mosaic_tpu import PassSizes, TpuTiles


@dataclasses.dataclass(frozen=True)
class KernelCase:
  """A kernel to compile.

  Attributes:
    name: `forward` or `backward`.
    fused: whether sources are threaded, and a direct read or a merge has the residual add and the
      following norm.
    kind: `direct` for a direct read, `block` for phase 1 of a depth block, `merge` for phase 2.
    num_reads: S, the reads of a depth block; 0 for a direct read.
    num_tokens: T.
    width: D.
    num_slots: N, all of which hold a source.
    num_banked: how many of the N sources are in a bank.
    dtype: the dtype of the sources.
  """

  name: str
  fused: bool
  kind: str = "direct"
  num_reads: int = 0
  num_tokens: int = 8192
  width: int = 2048
  num_slots: int = 8
  num_banked: int = 0
  dtype: str = "bfloat16"

  @property
  def passes(self) -> float:
    """The number of arrays [T, D] that are read or written."""
    if self.kind == "merge":
      low_bits = arg_specs.LOW_BITS * (self.dtype == "bfloat16")
      return low_bits + (6 if self.name == "backward" else 5 if self.fused else 3)
    if self.kind == "block":
      passes = {"forward": 1, "backward": 3 if self.fused else 2}[self.name]
      return passes * self.num_slots + self.num_reads
    if self.name == "forward":
      return self.num_slots + (3 if self.fused else 1)
    return (3 if self.fused else 2) * self.num_slots + 1


def compile_kernel(
  chip: str, case: KernelCase, tile_sizes: TpuTiles | None = None
) -> jax.stages.Compiled:
  """Compiles a kernel for a chip that need not be there, with the tile sizes given or its own."""
  devices = absent_devices.describe(slices.GENERATIONS[chip].host).devices
  mesh = Mesh(np.array(devices[:1]), ("data",))
  read = _read(case, Layout(mesh))

  def array(*shape: int, dtype: DTypeLike) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  if case.kind == "direct":
    return _compile_direct(case, read, array, tile_sizes)
  return {"block": _compile_block, "merge": _compile_merge}[case.kind](case, read, array)


def _compile_direct(
  case: KernelCase, read: Read, array: Callable, tile_sizes: TpuTiles | None
) -> jax.stages.Compiled:
  """Compiles a kernel of a direct read."""
  forward, backward = (partial(run, tile_sizes=tile_sizes) for run in _passes("direct", read))
  operands = _operands(case, array)
  if case.name == "forward":
    return jax.jit(forward).lower(operands).compile()
  slots = case.num_slots, case.num_tokens
  stats = Stats(*(array(*shape, dtype=jnp.float32) for shape in (slots, slots, slots[1:])))
  operands = operands._replace(addend=None)
  d_out = array(case.num_tokens, case.width, dtype=case.dtype)
  d_sources = (operands.bank, operands.recent) if case.fused else None
  jitted = jax.jit(backward, donate_argnums=(3,))
  return jitted.lower(operands, stats, d_out, d_sources).compile()


def _compile_block(case: KernelCase, read: Read, array: Callable) -> jax.stages.Compiled:
  """Compiles a kernel of phase 1, which chooses its tile sizes itself."""
  forward, backward = _passes("block", read)
  operands = _operands(case, array)
  if case.name == "forward":
    return jax.jit(forward).lower(operands).compile()
  slots, reads = (case.num_slots, case.num_tokens), (case.num_reads, case.num_tokens)
  shapes = slots, (case.num_reads, *slots), reads, reads
  *stats, d_lse = (array(*shape, dtype=jnp.float32) for shape in shapes)
  d_out = array(*reads, case.width, dtype=case.dtype)
  d_sources = (operands.bank, operands.recent) if case.fused else None
  jitted = jax.jit(backward, donate_argnums=(4,))
  return jitted.lower(operands, Stats(*stats), d_out, d_lse, d_sources).compile()


def _compile_merge(case: KernelCase, read: Read, array: Callable) -> jax.stages.Compiled:
  """Compiles a kernel of phase 2, whose tiles have one fixed size."""
  forward, backward = _passes("merge", read)
  rows = case.num_tokens, case.width
  source, row = array(*rows, dtype=case.dtype), array(case.width, dtype=jnp.float32)
  reads = array(case.num_reads, *rows, dtype=case.dtype)
  lse = array(case.num_reads, case.num_tokens, dtype=jnp.float32)
  addend, scale = (source, row) if case.fused else (None, None)
  counts = array(2, dtype=jnp.int32)
  operands = MergeOperands(reads, lse, source, counts, row, addend, scale)
  if case.name == "forward":
    return jax.jit(forward).lower(operands).compile()
  out, _, stats = jax.tree.map(
    lambda a: array(*a.shape, dtype=a.dtype), jax.eval_shape(forward, operands)
  )
  jitted = jax.jit(backward, donate_argnums=(4, 5))
  operands = operands._replace(out=None, lse=None, addend=None)
  return jitted.lower(operands, out, stats, source, source, (reads, lse)).compile()


def _passes(kind: str, read: Read) -> tuple[Callable, Callable]:
  """Returns the forward and the reverse pass of an operation."""
  forward, backward = (OPERATIONS[kind].load("mosaic_tpu", n) for n in ("forward", "backward"))
  return partial(forward.forward, read), partial(backward.backward, read)


def _operands(case: KernelCase, array: Callable) -> Operands:
  source = array(case.num_tokens, case.width, dtype=case.dtype)
  scale = array(case.width, dtype=jnp.float32)
  query = array(case.num_reads, case.width, dtype=jnp.float32) if case.kind == "block" else scale
  bank = array(case.num_banked, case.num_tokens, case.width, dtype=case.dtype)
  recent = (source,) * (case.num_slots - case.num_banked)
  fused = case.fused and case.kind == "direct"
  addend, scale = (source if recent else None, scale) if fused else (None, None)
  counts = array(2, dtype=jnp.int32)
  return Operands(bank if case.num_banked else None, recent, counts, query, addend, scale)


def _read(case: KernelCase, layout: Layout) -> Read:
  adds = case.fused and case.kind != "block" and case.num_banked < case.num_slots
  return Read(1, 1e-6, adds, case.fused, implementation="mosaic_tpu", layout=layout)


def sizes_of(chip: str, case: KernelCase) -> PassSizes:
  """Returns the pass that the kernel of a case makes on a chip."""
  read = _read(case, Layout())
  return PassSizes(
    case.name, chip, case.num_tokens, case.width, case.num_banked,
    case.num_slots - case.num_banked, case.dtype, read.adds,
    case.fused and case.kind == "direct", read.threaded,
  )  # fmt: skip
