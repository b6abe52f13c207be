"""How the kernels of depth attention are launched on NVIDIA GPUs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.gpu_ring import LANES, Ring, Segment
from resjax.kernels.depth_attention.gpu_tiles import GpuTiles
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.sharding import Layout
from resjax.typing import Array, PyTree

_PROGRAM = "program"
# SMs of an H100, for which a kernel is lowered where there is no GPU.
_ABSENT_SMS = 132


def num_programs(read: Read, tokens: int, tiles: GpuTiles) -> int:
  """Returns how many programs share the tokens: as many as run at a time.

  The interpreter runs them one after another, so it is a GPU of one streaming multiprocessor.
  """
  sms = 1 if read.interpret else getattr(device(read.layout), "core_count", _ABSENT_SMS)
  return min(tokens, tiles.programs_per_sm * sms)


def device(layout: Layout) -> jax.Device:
  """Returns a device of the kind that the program will run on."""
  return jax.devices()[0] if layout.mesh is None else layout.mesh.devices.flat[0]


def fold(operands: PyTree) -> PyTree:
  """Views arrays [..., D] as [..., D / 128, 128]: a copy moves up to 256 elements of an axis."""
  return jax.tree.map(lambda x: x.reshape(*x.shape[:-1], -1, LANES), operands)


def unfold(results: PyTree) -> PyTree:
  """Views arrays [..., D / 128, 128] as [..., D]."""
  return jax.tree.map(lambda x: x.reshape(*x.shape[:-2], -1), results)


def launch(
  read: Read,
  kernel: Callable,
  inputs: PyTree,
  outputs: PyTree,
  *,
  tiles: GpuTiles,
  programs: int,
  like: Array,
  scratch: tuple = (),
) -> PyTree:
  """Runs a kernel.

  Args:
    read: as given to the backend.
    kernel: (references of `inputs`, of `outputs`, rows and barriers of a ring, scratch) -> None.
    inputs: arrays in global memory.
    outputs: shapes.
    tiles: tile sizes.
    programs: size of the grid.
    like: folded rows of the dtype of the ring, [..., D / 128, 128].
    scratch: further shared memory.

  Returns:
    Arrays like `outputs`.
  """
  arrays, in_tree = jax.tree.flatten(inputs)
  shapes, out_tree = jax.tree.flatten(outputs)

  def body(*refs):
    num_in, num_refs = len(arrays), len(arrays) + len(shapes)
    ins = jax.tree.unflatten(in_tree, refs[:num_in])
    outs = jax.tree.unflatten(out_tree, refs[num_in:num_refs])
    kernel(ins, outs, *refs[num_refs:])

  results = plgpu.kernel(
    body,
    out_type=tuple(shapes),
    scratch_types=(
      plgpu.SMEM((tiles.rows, *like.shape[-2:]), like.dtype),
      plgpu.Barrier(num_barriers=tiles.rows),
      *scratch,
    ),
    grid=(programs,),
    grid_names=(_PROGRAM,),
    compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    interpret=read.interpret,
  )(*arrays)
  return jax.tree.unflatten(out_tree, results)


def program() -> Array:
  """Returns the number of the program that asks."""
  return lax.axis_index(_PROGRAM)


def make_ring(rows, barriers, segments: tuple[Segment, ...], tokens: int, programs: int) -> Ring:
  """Returns the ring of this program, which has every `programs`-th token."""
  first = program()
  steps = lax.div(tokens - first + jnp.int32(programs - 1), jnp.int32(programs))
  return Ring(rows, barriers, segments, lambda step: first + step * programs, steps)


def source_segments(operands: Operands, all_recent: bool) -> tuple[Segment, ...]:
  """Returns where the sources of a token lie, in the order of the slots.

  Args:
    operands: references of folded arrays.
    all_recent: whether the last recent source is needed even where it does not count.
  """
  num_valid, last = operands.counts[0], operands.counts[1]
  bank = () if operands.bank is None else (Segment(operands.bank, num_valid),)
  counted = [None] * len(operands.recent)
  if operands.recent and not all_recent:
    counted[-1] = last
  return (*bank, *map(Segment, operands.recent, counted))


def each_source(operands: Operands, read: Callable, skip: Callable, carry: PyTree) -> PyTree:
  """Goes over the slots in order.

  Args:
    operands: references of folded arrays.
    read: (slot, carry) -> carry, for those that count.
    skip: slot -> None, for the others.
    carry: initial one.
  """
  num_valid, last = operands.counts[0], operands.counts[1]
  num_banked = 0 if operands.bank is None else operands.bank.shape[0]
  if num_banked:
    carry = lax.fori_loop(jnp.int32(0), num_valid, read, carry)
    lax.fori_loop(num_valid, jnp.int32(num_banked), lambda slot, _: skip(slot), None)
  for slot in range(num_banked, num_banked + len(operands.recent) - 1):
    carry = read(slot, carry)
  if operands.recent:
    slot = num_banked + len(operands.recent) - 1

    def skipped(carry):
      skip(slot)
      return carry

    carry = lax.cond(last > 0, lambda carry: read(slot, carry), skipped, carry)
  return carry
