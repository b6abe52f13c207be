"""How the kernels of depth attention are launched on NVIDIA GPUs."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.mosaic_gpu.ring import Ring, Stream
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import LANES, Sums
from resjax.kernels.depth_attention.mosaic_gpu.tiles import GpuTiles
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.typing import Array, PyTree

_PROGRAM = "program"
# SMs of an H100, for which a kernel is lowered where there is no GPU.
_ABSENT_SMS = 132
_HOPPER = 9.0
# A thread holds its share of up to four rows in registers.
_MAX_WIDTH = 8192


def num_programs(read: Read, tokens: int, tiles: GpuTiles) -> int:
  """Returns how many programs share the tokens: as many as run at a time.

  The interpreter runs them one after another, so it is a GPU of one streaming multiprocessor.
  """
  sms = 1 if read.interpret else getattr(read.layout.device, "core_count", _ABSENT_SMS)
  return min(tokens, tiles.programs_per_sm * sms)


def obstacle(read: Read) -> str | None:
  """Returns why no kernel can run on the GPU of a read, or None."""
  if read.interpret:
    return None
  found = read.layout.device
  capability = getattr(found, "compute_capability", None)
  if capability is None:
    return f"the compute capability of {found.device_kind!r} is not known, it needs {_HOPPER}"
  if float(capability) < _HOPPER:
    return f"{found.device_kind!r} has compute capability {capability}, it needs {_HOPPER}"
  return None


def width_obstacle(like: Array) -> str | None:
  """Returns why a kernel that has rows in registers cannot run on rows like these, or None."""
  width = like.shape[-1]
  if width > _MAX_WIDTH:
    return f"the width {width} (config.model.d_model) is above {_MAX_WIDTH}, what registers hold"
  return None


def fold(rows: PyTree) -> PyTree:
  """Views arrays [..., D] as [..., D / 128, 128]."""
  return jax.tree.map(lambda x: x.reshape(*x.shape[:-1], -1, LANES), rows)


def unfold(rows: PyTree) -> PyTree:
  """Views arrays [..., D / 128, 128] as [..., D]."""
  return jax.tree.map(lambda x: x.reshape(*x.shape[:-2], -1), rows)


def fold_operands(operands: Operands) -> Operands:
  """Folds all but the counts."""
  return fold(operands._replace(counts=None))._replace(counts=operands.counts)


class Shared(NamedTuple):
  """Shared memory of a program, references.

  Attributes:
    buffers: rows and barriers of each `Ring`.
    sums: sums over channels.
    numbers: what the kernel asked for.
  """

  buffers: tuple[tuple[Any, Any], ...]
  sums: Sums
  numbers: tuple


def launch(
  read: Read,
  kernel: Callable,
  inputs: PyTree,
  outputs: PyTree,
  *,
  tiles: GpuTiles,
  programs: int,
  like: Array,
  name: str,
  updated: PyTree = None,
  numbers: tuple = (),
) -> tuple[PyTree, PyTree]:
  """Runs a kernel, under `vmap` once per element.

  Args:
    read: as given to the backend.
    kernel: (references of `inputs`, of `outputs`, of `updated`, `Shared`) -> None.
    inputs: arrays in global memory.
    outputs: shapes.
    tiles: tile sizes.
    programs: size of the grid.
    like: a folded source.
    name: of the kernel.
    updated: arrays in global memory that the kernel changes where they lie.
    numbers: further shared memory.

  Returns:
    Arrays like `outputs`, and like `updated`.
  """
  in_leaves, in_tree = jax.tree.flatten((inputs, updated))
  shapes, out_tree = jax.tree.flatten(outputs)
  num_in = len(jax.tree.leaves(inputs))
  scratch = _scratch(tiles, like, numbers)

  def body(*refs):
    operands = jax.tree.unflatten(in_tree, refs[: len(in_leaves)])
    results = jax.tree.unflatten(out_tree, refs[len(in_leaves) :])

    def run(shared):
      kernel(operands[0], results, operands[1], shared)

    pl.run_scoped(run, scratch)

  run = pl.kernel(
    body,
    tuple(shapes),
    mesh=plgpu.Mesh(grid=(programs,), grid_names=(_PROGRAM,)),
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True
    ),
    interpret=read.interpret,
    name=name,
  )

  @jax.custom_batching.sequential_vmap
  def call(*arrays):
    def in_place(refs):
      results, changed = refs
      for ref, result in zip(results, run(*arrays[:num_in], *changed), strict=True):
        ref[...] = result

    empty = tuple(jnp.zeros(x.shape, x.dtype) for x in shapes)
    return pl.run_state(in_place)((empty, arrays[num_in:]))

  results, changed = call(*in_leaves)
  _, updated = jax.tree.unflatten(in_tree, (*in_leaves[:num_in], *changed))
  return jax.tree.unflatten(out_tree, results), updated


def _scratch(tiles: GpuTiles, like: Array, numbers: tuple) -> Shared:
  """Returns what a program allocates."""

  def buffer(rows):
    return plgpu.SMEM((rows, *like.shape[-2:]), like.dtype), plgpu.Barrier(num_barriers=rows)

  rings = tiles.rows, *tiles.further_rows
  return Shared(tuple(map(buffer, rings)), Sums.scratch(tiles.summed_rows, like.shape[-2]), numbers)


def fresh_sources(read: Read, operands: Operands) -> PyTree:
  """Returns shapes of the cotangents of bank and recent sources; none if those are threaded."""
  if read.threaded:
    return None, ()
  sources = operands.bank, operands.recent
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), sources)


def program() -> Array:
  """Returns the number of the program that asks."""
  return lax.axis_index(_PROGRAM)


def make_ring(buffer: tuple, streams: tuple, tokens: int, programs: int) -> Ring:
  """Returns a ring of this program, which has every `programs`-th token, filled."""
  first = program()
  steps = lax.div(tokens - first + jnp.int32(programs - 1), jnp.int32(programs))
  ring = Ring(*buffer, streams, lambda step: first + step * programs, steps)
  ring.start()
  return ring


def source_streams(operands: Operands) -> tuple[Stream, ...]:
  """Returns where the sources of a token lie, in the order of the slots, and which count."""
  num_valid, last = operands.counts[0], operands.counts[1]
  num_banked = operands.num_slots - len(operands.recent)

  def stream(slot):
    valid = num_valid > slot if slot < num_banked else None
    if operands.recent and slot == operands.num_slots - 1:
      valid = last > 0
    return Stream(functools.partial(row_of, operands.bank, operands.recent, slot), valid)

  return tuple(map(stream, range(operands.num_slots)))


def row_of(bank: Any, recent: tuple, slot: int, token: Array) -> Any:
  """Returns the reference of a token's row in a slot of what is laid out like sources."""
  num_banked = 0 if bank is None else bank.shape[0]
  if slot < num_banked:
    return bank.at[slot, token]
  return recent[slot - num_banked].at[token]
