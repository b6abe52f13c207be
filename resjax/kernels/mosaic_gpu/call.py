"""How kernels are launched on NVIDIA GPUs, and how they see their arrays."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array, PyTree
from resjax.kernels.mosaic_gpu.ring import Ring, Stream
from resjax.kernels.mosaic_gpu.row_ops import ChannelSums
from resjax.kernels.mosaic_gpu.tiles import GpuTiles
from resjax.kernels.operation import LANES, Field, Options, Ref

_PROGRAM = "program"
# Streaming multiprocessors of an H100, for which a kernel is lowered where there is no GPU.
_ABSENT_SMS = 132
_HOPPER = 9.0


def device_obstacle(options: Options) -> str | None:
  """Returns why no kernel can run on the GPU of a mesh, or None."""
  if options.interpret:
    return None
  found = options.layout.device
  capability = getattr(found, "compute_capability", None)
  if capability is None:
    return f"the compute capability of {found.device_kind!r} is not known, it needs {_HOPPER}"
  if float(capability) < _HOPPER:
    return f"{found.device_kind!r} has compute capability {capability}, it needs {_HOPPER}"
  return None


def fold(rows: PyTree) -> PyTree:
  """Views arrays [..., D] as [..., D / 128, 128]."""
  return jax.tree.map(lambda x: x.reshape(*x.shape[:-1], -1, LANES), rows)


def unfold(rows: PyTree) -> PyTree:
  """Views arrays [..., D / 128, 128] as [..., D]."""
  return jax.tree.map(lambda x: x.reshape(*x.shape[:-2], -1), rows)


class Refs(NamedTuple):
  """The memory that a kernel works with.

  Attributes:
    inputs: references to arrays in global memory that are read.
    outputs: references to arrays in global memory that are written.
    totals: references to sums over tokens, one part per program, in global memory.
    updated: references to arrays in global memory that are changed in place.
    rings: for every `Ring` its rows and barriers in shared memory.
    sums: what sums over channels need.
    numbers: further shared memory that the kernel asked for.
  """

  inputs: Any
  outputs: Any
  totals: Any
  updated: Any
  rings: tuple[tuple[Ref, Ref], ...]
  sums: ChannelSums
  numbers: tuple

  def own_totals(self) -> Any:
    """Returns references to this program's part of the totals."""
    own = program()
    return jax.tree.map(lambda ref: ref.at[own], self.totals)


class Results(NamedTuple):
  """The arrays that a kernel wrote, in the trees that `launch` was given.

  Attributes:
    outputs: arrays of the shapes that were asked for.
    totals: sums over all tokens.
    updated: the arrays that were changed in place.
  """

  outputs: Any
  totals: Any
  updated: Any


def launch(
  options: Options,
  kernel: Callable[[Refs], None],
  tiles: GpuTiles,
  like: jax.ShapeDtypeStruct,
  name: str,
  *,
  inputs: PyTree,
  outputs: PyTree = None,
  totals: PyTree = None,
  updated: PyTree = None,
  numbers: tuple = (),
) -> Results:
  """Runs a kernel; under `vmap` it runs once per element.

  Args:
    options: mesh, and whether the kernel is interpreted.
    kernel: function that is traced in every program.
    tiles: tile sizes.
    like: folded rows [T, D / 128, 128].
    name: name of the kernel.
    inputs: arrays that the kernel reads.
    outputs: shapes of arrays that the kernel writes.
    totals: shapes of float32 sums over tokens, to which every program writes its part.
    updated: arrays that the kernel changes in place.
    numbers: further shared memory that every program needs.
  """
  programs = _num_programs(options, len(like), tiles)
  parts = jax.tree.map(lambda x: jax.ShapeDtypeStruct((programs, *x.shape), jnp.float32), totals)
  in_leaves, in_tree = jax.tree.flatten((inputs, updated))
  shapes, out_tree = jax.tree.flatten((outputs, parts))
  num_inputs = len(jax.tree.leaves(inputs))
  scratch = _scratch(tiles, like, numbers)

  def body(*refs: Ref) -> None:
    read_refs, updated_refs = jax.tree.unflatten(in_tree, refs[: len(in_leaves)])
    output_refs, part_refs = jax.tree.unflatten(out_tree, refs[len(in_leaves) :])
    pl.run_scoped(
      lambda shared: kernel(Refs(read_refs, output_refs, part_refs, updated_refs, *shared)), scratch
    )

  run = pl.kernel(
    body,
    tuple(shapes),
    mesh=plgpu.Mesh(grid=(programs,), grid_names=(_PROGRAM,)),
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True
    ),
    interpret=options.interpret,
    name=name,
  )

  @jax.custom_batching.sequential_vmap
  def call(*arrays: Array) -> tuple:
    def in_place(refs: tuple) -> None:
      results, changed = refs
      for ref, result in zip(results, run(*arrays[:num_inputs], *changed), strict=True):
        ref[...] = result

    empty = tuple(jnp.zeros(x.shape, x.dtype) for x in shapes)
    return pl.run_state(in_place)((empty, arrays[num_inputs:]))

  results, changed = call(*in_leaves)
  _, updated = jax.tree.unflatten(in_tree, (*in_leaves[:num_inputs], *changed))
  outputs, parts = jax.tree.unflatten(out_tree, results)
  return Results(outputs, jax.tree.map(lambda x: jnp.sum(x, axis=0), parts), updated)


def _num_programs(options: Options, tokens: int, tiles: GpuTiles) -> int:
  """Returns how many programs share the tokens: as many as run at a time.

  The interpreter runs programs one after another: to it, the GPU has one streaming multiprocessor.
  """
  sms = 1 if options.interpret else getattr(options.layout.device, "core_count", _ABSENT_SMS)
  return min(tokens, tiles.programs_per_sm * sms)


def _scratch(tiles: GpuTiles, like: jax.ShapeDtypeStruct, numbers: tuple) -> tuple:
  """Returns the shared memory that a program allocates: rings, sums and numbers of `Refs`."""

  def ring(rows: int) -> tuple[Any, Any]:
    return plgpu.SMEM((rows, *like.shape[-2:]), like.dtype), plgpu.Barrier(num_barriers=rows)

  rings = tuple(map(ring, (tiles.rows, *tiles.further_rows)))
  return rings, ChannelSums.scratch(tiles.summed_rows, like.shape[-2]), numbers


def program() -> Array:
  """Returns the number of the program that asks."""
  return lax.axis_index(_PROGRAM)


def make_ring(
  buffer: tuple[Ref, Ref], streams: tuple[Stream, ...], tokens: int, parts: int = 1
) -> Ring:
  """Returns a ring for the tokens of this program, filled; with P programs these are every P-th.

  Args:
    buffer: rows and barriers.
    streams: where the rows lie.
    tokens: T.
    parts: in how many steps a token passes. What the ring takes for a token is then the number of
      one of these parts, of T times as many.
  """
  first, programs = program(), lax.axis_size(_PROGRAM)
  steps = lax.div(tokens - first + jnp.int32(programs - 1), jnp.int32(programs))

  def part(step: Array) -> Array:
    size = jnp.int32(parts)
    return (first + lax.div(step, size) * programs) * parts + lax.rem(step, size)

  ring = Ring(*buffer, streams, part, steps * parts)
  ring.start()
  return ring


def row_stream(ref: Ref, valid: Array | None = None) -> Stream:
  """Returns the stream of the rows of an array [T, ...]."""
  return Stream(lambda token: ref.at[token], valid)


def stream_rows(ref: Field) -> tuple[Stream, ...]:
  """Returns where the R rows of a token in [R, T, D / 128, 128] lie."""
  return tuple(Stream(functools.partial(_row_in, ref, r)) for r in range(ref.shape[0]))


def _row_in(ref: Ref, index: int, token: Array) -> Ref:
  return ref.at[index, token]
