"""How kernels are called on TPUs, once per tile."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import use_abstract_mesh

from resjax.base import Array, PyTree
from resjax.kernels.operation import Options, Ref

_Plan = TypeVar("_Plan")
_Inputs = TypeVar("_Inputs")
_Outputs = TypeVar("_Outputs")
_Scratch = TypeVar("_Scratch")


class Tiled(NamedTuple):
  """An array that a kernel reads, or the shape of one that it writes, and how it is tiled."""

  array: Array | jax.ShapeDtypeStruct
  spec: pl.BlockSpec


@dataclasses.dataclass(frozen=True)
class TileKernel(Generic[_Plan, _Inputs, _Outputs, _Scratch]):
  """One tile of tokens in a kernel; a subclass is a kernel.

  Attributes:
    plan: sizes.
    counts: reference, int32 [2], see `Operands`.
    inputs: references to the tiles of the inputs.
    outputs: references to the tiles of the outputs.
    scratch: references to further on-chip memory.
  """

  plan: _Plan
  counts: Ref
  inputs: _Inputs
  outputs: _Outputs
  scratch: _Scratch

  def run(self) -> None:
    """Works on the tile."""
    raise NotImplementedError


def tiled(array: Array | jax.ShapeDtypeStruct | None, spec: pl.BlockSpec) -> Tiled | None:
  """Returns an array with its tiles; None if there is no array."""
  return None if array is None else Tiled(array, spec)


def in_memory(array: Array | jax.ShapeDtypeStruct | None) -> Tiled | None:
  """Returns an array that stays in the memory of the device, where a kernel copies it by hand."""
  return tiled(array, pl.BlockSpec(memory_space=pl.ANY))


def on_one_device(run: Callable) -> Callable:
  """Decorates a pass of a backend, (read, *trees of arrays, **options) -> tree of arrays.

  The compiler of a kernel asks the mesh in context for the kind of chip. `shard_map` sets that
  mesh, but where a mesh has one device there is no `shard_map`, so it is set here. Under `vmap` the
  pass runs once per element: one more axis of the grid would split the sums over tokens.
  """

  @functools.wraps(run)
  def call(read: Options, *arrays: PyTree, **options: Any) -> PyTree:
    @jax.custom_batching.sequential_vmap
    def once(*arrays: PyTree) -> PyTree:
      mesh = read.layout.mesh
      alone = mesh.size == 1
      with use_abstract_mesh(mesh.abstract_mesh) if alone else contextlib.nullcontext():
        return run(read, *arrays, **options)

    return once(*arrays)

  return call


def launch(
  read: Options,
  kernel: type[TileKernel],
  plan: Any,
  name: str,
  counts: Array,
  *,
  inputs: PyTree,
  outputs: PyTree,
  cost: pl.CostEstimate,
  scratch: PyTree = (),
  updates: tuple[tuple[str, str], ...] = (),
) -> PyTree:
  """Runs a kernel once per tile.

  Args:
    read: options.
    kernel: class of the kernel.
    plan: sizes, with `grid` and `vmem_limit`; the tiles of a part of the grid run in order.
    name: name of the kernel.
    counts: int32 [2], see `Operands`.
    inputs: named tuple of `Tiled` arrays.
    outputs: named tuple of `Tiled` shapes.
    cost: floating-point operations and bytes, for the scheduler of XLA.
    scratch: tree of on-chip memory that the kernel needs beside its tiles.
    updates: pairs of a field of `inputs` and a field of `outputs`, such as d_sources.bank: where
      the first one has an array, the output takes its place in memory.

  Returns:
    The outputs.
  """
  arrays, in_specs = _apart(inputs)
  shapes, out_specs = _apart(outputs)
  return over_tiles(
    read,
    lambda *refs: kernel(plan, *refs).run(),
    name,
    (counts, arrays),
    grid=plan.grid,
    in_specs=(in_specs,),
    out_specs=out_specs,
    out_shape=shapes,
    scratch=scratch,
    vmem_limit=plan.vmem_limit,
    cost=cost,
    aliases=_aliases(arrays, shapes, updates),
    num_prefetched=1,
  )


def over_tiles(
  read: Options,
  kernel: Callable[..., None],
  name: str,
  arrays: tuple,
  *,
  grid: tuple[int, ...],
  in_specs: tuple,
  out_specs: PyTree,
  out_shape: PyTree,
  scratch: PyTree,
  vmem_limit: int,
  cost: pl.CostEstimate,
  aliases: Mapping[int, int] | None = None,
  num_prefetched: int = 0,
) -> PyTree:
  """Runs a function once per tile of a grid, whose first axis alone may run in parallel.

  Args:
    read: options.
    kernel: the function of references to the tiles of inputs, outputs and on-chip memory.
    name: name of the kernel.
    arrays: the inputs.
    grid: the sizes of the axes of the grid.
    in_specs: the tiles of `arrays` without those that are prefetched.
    out_specs: tree of the tiles of the outputs.
    out_shape: tree of the shapes of the outputs.
    scratch: tree of on-chip memory that the kernel needs beside its tiles.
    vmem_limit: bytes of on-chip memory.
    cost: floating-point operations and bytes, for the scheduler of XLA.
    aliases: the numbers of flat inputs whose memory an output takes, and that of the output.
    num_prefetched: how many of the first arrays are scalars that are there before the first tile.

  Returns:
    The outputs.
  """
  in_order: list[Literal["arbitrary"]] = ["arbitrary" for _ in grid[1:]]
  (found,) = pl.pallas_call(
    kernel,
    out_shape=(out_shape,),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=num_prefetched,
      grid=grid,
      in_specs=in_specs,
      out_specs=(out_specs,),
      scratch_shapes=(scratch,),
    ),
    input_output_aliases=dict(aliases or {}),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", *in_order),
      vmem_limit_bytes=vmem_limit,
    ),
    cost_estimate=cost,
    interpret=read.interpret,
    name=name,
  )(*arrays)
  return found


def _apart(tree: PyTree) -> tuple[PyTree, PyTree]:
  """Returns a tree of `Tiled` as a tree of arrays and a tree of their specs."""

  def each(function: Callable[[Tiled], Any]) -> PyTree:
    return jax.tree.map(function, tree, is_leaf=lambda x: isinstance(x, Tiled))

  return each(lambda x: x.array), each(lambda x: x.spec)


def _aliases(inputs: Any, outputs: Any, updates: tuple[tuple[str, str], ...]) -> dict[int, int]:
  """Returns the number of each flat input that is updated, and that of the output it becomes."""

  def numbered(tree: Any, first: int) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, range(first, first + len(leaves)))

  sources, targets = numbered(inputs, 1), numbered(outputs, 0)  # the counts are input 0
  aliases: dict[int, int] = {}
  for source, target in updates:
    pairs = (jax.tree.leaves(attrgetter(n)(t)) for n, t in ((source, sources), (target, targets)))
    aliases |= dict(zip(*pairs, strict=False))  # no inputs where sources are not threaded
  return aliases
