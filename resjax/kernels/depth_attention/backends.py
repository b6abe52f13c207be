"""The backends of depth attention: which one runs, and on which shard of the tokens.

A kernel sees the tokens of one device as rows [T, D] of local arrays: `shard_map` lies around the
forward and around the reverse pass, inside of `custom_vjp`. All that devices exchange is the sum
over tokens of the cotangents of query and output gain.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.depth_attention.reference import direct as reference
from resjax.sharding import Layout
from resjax.typing import Array, PyTree

# The folders of kernels in order of preference, and the platform on which each of them runs.
KERNELS = {"mosaic_tpu": "tpu", "mosaic_gpu": "gpu"}
IMPLEMENTATIONS = (*KERNELS, "reference")
LANES = 128
MAX_SOURCES = 128


def kernel(name: str, operation: str) -> ModuleType:
  """Imports and returns a kernel, whose Pallas dialect no other platform has to load.

  Args:
    name: one of `KERNELS`.
    operation: `direct`, `block` or `merge`.

  Returns:
    A module with `forward` and `backward` as in reference/, and `obstacle`.
  """
  return importlib.import_module(f"{__package__}.{name}.{operation}")


def choose(
  read: Read, operands: Any, implementation: str | None, operation: str = "direct"
) -> Read:
  """Returns the read with the backend that runs it.

  Args:
    read: without a backend.
    operands: `Operands`, or others that have its properties.
    implementation: one of `IMPLEMENTATIONS`, or None, the first that can run; `reference` for
      several devices and no mesh.
    operation: `direct`, `block` or `merge`.

  Raises:
    ValueError: there is no such backend, or it cannot run here.
  """
  if implementation is None:
    if not read.layout.has_mesh and jax.device_count() > 1 and not read.interpret:
      # XLA cannot partition a kernel; without a mesh nothing says how tokens are split.
      return dataclasses.replace(read, implementation="reference")
    runs = (name for name in IMPLEMENTATIONS if _obstacle(name, operation, read, operands) is None)
    name = next(runs)
    return dataclasses.replace(read, implementation=name)
  if implementation not in IMPLEMENTATIONS:
    raise ValueError(
      f"implementation={implementation!r} of depth attention is not known; allowed: "
      f"{', '.join(IMPLEMENTATIONS)}, or None for the best"
    )
  obstacle = _obstacle(implementation, operation, read, operands)
  if obstacle:
    raise ValueError(
      f"implementation={implementation!r} of depth attention cannot run: {obstacle}; "
      "implementation=None takes the best that can"
    )
  return dataclasses.replace(read, implementation=implementation)


def has_kernel(read: Read, operands: Any, implementation: str | None, operation: str) -> bool:
  """Whether `choose` returns a kernel, not the reference; an unknown name has none."""
  try:
    return choose(read, operands, implementation, operation).implementation != "reference"
  except ValueError:
    return False


def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Stats]:
  """Runs the forward pass of the chosen backend, see reference/direct.py."""
  if read.implementation == "reference":
    return reference.forward(read, operands)
  run = partial(kernel(read.implementation, "direct").forward, read)
  out_axes = FIRST, FIRST if read.adds else None, _STATS
  return first_order(on_rows(read.layout, run, (operand_axes(operands),), out_axes), operands)


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass of the chosen backend, see reference/direct.py."""
  if read.implementation == "reference":
    return reference.backward(read, operands, stats, d_out, d_sources)
  run = partial(kernel(read.implementation, "direct").backward, read)
  axes = operand_axes(operands)
  sources = axes.bank, axes.recent
  in_axes = axes, _STATS, FIRST, sources if read.threaded else None
  out_axes = Cotangents(*sources, NO_TOKENS, axes.out_norm_scale)
  call = on_rows(read.layout, run, in_axes, out_axes)
  return first_order(call, operands, stats, d_out, d_sources)


def _obstacle(name: str, operation: str, read: Read, operands: Any) -> str | None:
  """Returns why a backend cannot run, or None."""
  if name == "reference":
    return None
  layout, like = read.layout, operands.like
  if layout.platform != KERNELS[name] and not read.interpret:
    return f"it needs platform {KERNELS[name]!r}, the mesh is on {layout.platform!r}"
  if read.num_heads > 1:
    return f"it has one head, not num_heads={read.num_heads}"
  if like.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
    return f"the sources are {like.dtype}, it takes bfloat16, float16 and float32"
  if like.shape[-1] % LANES:
    return f"the width {like.shape[-1]} (config.model.d_model) is no multiple of {LANES}"
  if operands.num_slots > MAX_SOURCES:
    return f"there are {operands.num_slots} sources, it takes up to {MAX_SOURCES}"
  return _sharding_obstacle(layout, like) or kernel(name, operation).obstacle(read, operands)


def _sharding_obstacle(layout: Layout, like: Array) -> str | None:
  if not layout.spans_devices:
    return None
  if like.ndim != 3:
    return f"sources of shape {like.shape} on a mesh, it splits [B, T, D]"
  if layout.num_shards("embed") > 1:
    return "the mesh splits D of activations (rule 'embed'), it reads whole rows"
  for axis, size in (("batch", like.shape[0]), ("tokens", like.shape[1])):
    if size % layout.num_shards(axis):
      return f"axis {axis!r} of size {size} does not divide over {layout.num_shards(axis)} devices"
  return None


# Where the token axes of an array begin: [..., D]; [N, ..., D]; [S, N, ...]; it has none, and is
# summed over devices where a reverse pass returns it.
FIRST, SECOND, THIRD, NO_TOKENS = 0, 1, 2, -1
_STATS = Stats(SECOND, SECOND, FIRST)


def operand_axes(operands: Operands) -> Operands:
  """Returns where the token axes of every array of `operands` begin."""
  fields = Operands(SECOND, FIRST, NO_TOKENS, NO_TOKENS, FIRST, NO_TOKENS)
  spread = [jax.tree.map(lambda _, axis=a: axis, o) for a, o in zip(fields, operands, strict=True)]
  return Operands(*spread)


def on_rows(layout: Layout, fn: Callable, in_axes: PyTree, out_axes: PyTree) -> Callable:
  """Gives `fn` the rows [T, D] of one device, all token axes folded into one.

  Args:
    layout: mesh and rules.
    fn: takes the trees of `in_axes`; the first one has `like`, as `Operands`.
    in_axes: for each array where its token axes begin.
    out_axes: the same for what it returns.
  """

  def local(*trees):
    tokens = trees[0].like.shape[:-1]

    def fold(axis, x):
      behind = x.shape[axis + len(tokens) :]
      return x if axis < 0 else x.reshape(*x.shape[:axis], math.prod(tokens), *behind)

    def unfold(axis, x):
      if axis < 0:
        return lax.psum(x, _token_axes(layout)) if layout.spans_devices else x
      return x.reshape(*x.shape[:axis], *tokens, *x.shape[axis + 1 :])

    return jax.tree.map(unfold, out_axes, fn(*jax.tree.map(fold, in_axes, trees)))

  if not layout.spans_devices:
    return local

  def spec(axis):
    return layout.spec(*[None] * axis, "batch", "tokens") if axis >= 0 else PartitionSpec()

  in_specs, out_specs = jax.tree.map(spec, (in_axes, out_axes))
  # The outputs of a kernel carry no annotation of the axes that they vary over.
  return jax.shard_map(
    local, mesh=layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
  )


def _token_axes(layout: Layout) -> tuple[str, ...]:
  return (*layout.rules.batch, *layout.rules.tokens)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def first_order(call: Callable, *args: PyTree) -> PyTree:
  """Calls what has no derivative of its own: under custom_vjp, a second one would need it."""
  return call(*args)


@first_order.defjvp
def _refuse(call, primals, tangents):
  del call, primals, tangents
  raise ValueError(
    "the kernels of depth attention have no second derivative; use implementation='reference'"
  )
