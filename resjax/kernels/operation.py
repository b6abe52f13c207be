"""One shell around all operations with kernels: which implementation runs, on what, and why not.

An operation is a package. It has a package or module for each implementation, of its name:
`reference` in plain JAX, and kernels in a dialect of Pallas, `mosaic_tpu` and `mosaic_gpu`. All of
them have a forward and a reverse pass, which take and return the same tuples of arrays:

  READ = Operation("residual streams", "resjax.kernels.streams", axes)
  options = READ.choose(options, operands, None)  # the best that can run here
  results = READ.forward(options, operands)
  cotangents = READ.backward(options, operands, *others)

A kernel sees the tokens of one device as rows [T, D] of local arrays: there is one `shard_map`
around the forward and one around the reverse pass, both inside a `custom_vjp` of the operation.
Devices exchange nothing but the sums over tokens in the cotangents of what all tokens share.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout

REFERENCE = "reference"
# The packages of kernels in order of preference, and the platform on which each of them runs.
KERNELS = {"mosaic_tpu": "tpu", "mosaic_gpu": "gpu"}
IMPLEMENTATIONS = (*KERNELS, REFERENCE)
# D is a multiple of it: the channels of a register of a TPU, and the threads of a warpgroup.
LANES = 128
# A field of the tuples that an operation takes and returns. It holds an array, or what stands for
# it elsewhere: its shape, its tiles, a reference to its memory inside a kernel, or the position of
# its token axes.
Field = Any
# A reference to memory inside a Pallas kernel; JAX has no public type for it.
Ref = Any
# The position of the first token axis of an array: [..., D], [N, ..., D] or [S, N, ...]. An array
# without token axes is the same on all devices, and one that a reverse pass returns is summed.
FIRST, SECOND, THIRD, NO_TOKENS = 0, 1, 2, -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """The static options of an operation, next to its arrays; each operation subclasses it.

  Attributes:
    implementation: name of the implementation that runs.
    layout: mesh, and how token axes are split over it.
    interpret: False, or a value for the argument `interpret` of a Pallas call.
  """

  implementation: str = REFERENCE
  layout: Layout = dataclasses.field(default_factory=Layout)
  interpret: Any = False


_Options = TypeVar("_Options", bound=Options)


class Axes(NamedTuple):
  """Trees of the positions of the first token axis of all arrays of an operation.

  Attributes:
    operands: of the arrays that both passes take; the tuple itself has `like`, the shape [..., D]
      and dtype of an array with all token axes.
    results: of the results of the forward pass.
    others: of the further arguments of the reverse pass.
    cotangents: of the results of the reverse pass.
  """

  operands: Any
  results: tuple
  others: tuple
  cotangents: Any


def _no_limit(options: Any, operands: Any) -> str | None:
  del options, operands
  return None


@dataclasses.dataclass(frozen=True)
class Operation:
  """An operation with kernels.

  Attributes:
    what: words for it in error messages.
    package: its name.
    axes: function (options, operands) -> `Axes`.
    kind: of an operation that shares its package with others: the module `reference.KIND` has both
      passes, and packages of kernels have `KIND_forward`, `KIND_backward` and, in `obstacles`, a
      function KIND. Else these are `reference`, `forward`, `backward` and `obstacle`.
    arrays: what error messages call the arrays that kernels load.
    dtypes: that kernels take.
    limit: function (options, operands) -> why no kernel can run, or None.
  """

  what: str
  package: str
  axes: Callable[[Any, Any], Axes]
  kind: str = ""
  arrays: str = "streams"
  dtypes: tuple[str, ...] = ("bfloat16", "float32")
  limit: Callable[[Any, Any], str | None] = _no_limit

  def choose(self, options: _Options, operands: Any, implementation: str | None) -> _Options:
    """Returns the options with the implementation that runs.

    Args:
      options: without an implementation.
      operands: the arrays.
      implementation: one of `IMPLEMENTATIONS`; or None, the first that can run, which is
        `reference` where there are several devices and no mesh.

    Raises:
      ValueError: there is no such implementation, or it cannot run here.
    """
    if implementation is None:
      chosen = self._best(options, operands)
    elif implementation not in IMPLEMENTATIONS:
      raise ValueError(
        f"implementation={implementation!r} of {self.what} is not known; allowed: "
        f"{', '.join(IMPLEMENTATIONS)}, or None for the best"
      )
    elif reason := self._obstacle(implementation, options, operands):
      raise ValueError(
        f"implementation={implementation!r} of {self.what} cannot run: {reason}; "
        "config implementation=auto, or None in Python, takes the best that can"
      )
    else:
      chosen = implementation
    return dataclasses.replace(options, implementation=chosen)

  def has_kernel(self, options: Options, operands: Any, implementation: str | None) -> bool:
    """Returns whether `choose` returns a kernel, not the reference; no if it raises."""
    try:
      return self.choose(options, operands, implementation).implementation != REFERENCE
    except ValueError:
      return False

  def forward(
    self, options: Options, operands: Any, results: PyTree = None, **keywords: Any
  ) -> Any:
    """Runs the forward pass by the chosen implementation.

    Args:
      options: with an implementation.
      operands: the arrays.
      results: axes of the results where the pass is asked to leave some out.
      **keywords: what else it is asked.

    Returns:
      What `forward` of the implementation does.
    """
    axes = self.axes(options, operands)
    results = axes.results if results is None else results
    return self._run("forward", options, (axes.operands,), results, **keywords)(operands)

  def backward(self, options: Options, operands: Any, *others: PyTree) -> Any:
    """Runs the reverse pass by the chosen implementation.

    Args:
      options, operands: see `forward`.
      *others: what `backward` of an implementation takes after the operands.

    Returns:
      What that returns.
    """
    axes = self.axes(options, operands)
    run = self._run("backward", options, (axes.operands, *axes.others), axes.cotangents)
    return run(operands, *others)

  def load(self, implementation: str, module: str) -> Any:
    """Returns a module of an implementation, whose dialect of Pallas nobody else loads.

    Args:
      implementation: one of `IMPLEMENTATIONS`.
      module: `forward`, `backward` or, of kernels, `obstacles`.
    """
    package = importlib.import_module(f"{self.package}.{implementation}")
    if implementation == REFERENCE:
      return getattr(package, self.kind) if self.kind else package
    own = self.kind and module != "obstacles"
    return getattr(package, f"{self.kind}_{module}" if own else module)

  def _run(
    self, name: str, options: Options, in_axes: tuple, out_axes: PyTree, **keywords: Any
  ) -> Callable:
    """Returns a function that runs a pass, that of a kernel on the rows of each device."""
    run = getattr(self.load(options.implementation, name), name)
    run = partial(run, options, **keywords)
    if options.implementation == REFERENCE:
      return run
    return _on_each_device(options.layout, self.what, run, in_axes, out_axes)

  def _best(self, options: Options, operands: Any) -> str:
    layout = options.layout
    if not layout.has_mesh and jax.device_count() > 1 and not options.interpret:
      # XLA cannot partition a kernel, and without a mesh nothing says how tokens are split.
      return REFERENCE
    return next(n for n in IMPLEMENTATIONS if self._obstacle(n, options, operands) is None)

  def _obstacle(self, name: str, options: Options, operands: Any) -> str | None:
    """Returns why an implementation cannot run, or None."""
    if name == REFERENCE:
      return None
    layout, like = options.layout, operands.like
    if layout.platform != KERNELS[name] and not options.interpret:
      return f"it needs platform {KERNELS[name]!r}, the mesh is on {layout.platform!r}"
    if reason := self.limit(options, operands):
      return reason
    if jnp.dtype(like.dtype).name not in self.dtypes:
      *others, last = self.dtypes
      return f"the {self.arrays} are {like.dtype}, it takes {', '.join(others)} and {last}"
    if like.shape[-1] % LANES:
      return f"the width {like.shape[-1]} (config.model.d_model) is no multiple of {LANES}"
    if reason := _split_obstacle(layout, like):
      return reason
    return getattr(self.load(name, "obstacles"), self.kind or "obstacle")(options, operands)


def _split_obstacle(layout: Layout, like: jax.ShapeDtypeStruct) -> str | None:
  """Returns why a kernel cannot run on arrays [..., D] that are split as `layout` says, or None."""
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


def _on_each_device(
  layout: Layout, what: str, run: Callable, in_axes: tuple[PyTree, ...], out_axes: PyTree
) -> Callable:
  """Returns a function that runs a kernel on the rows of each device.

  Args:
    layout: mesh, and how token axes are split over it.
    what: words for the error message if a second derivative is asked for.
    run: takes the trees of `in_axes`, whose token axes are folded into one; the first tree has
      `like`, the shape [..., D] of an array with all token axes.
    in_axes: for every array the position of its first token axis.
    out_axes: the same for what `run` returns.
  """

  def local(*trees: PyTree) -> PyTree:
    tokens = trees[0].like.shape[:-1]

    def fold(axis: int, x: Array) -> Array:
      behind = x.shape[axis + len(tokens) :]
      return x if axis < 0 else x.reshape(*x.shape[:axis], math.prod(tokens), *behind)

    def unfold(axis: int, x: Array) -> Array:
      if axis < 0:
        return lax.psum(x, _token_axes(layout)) if layout.spans_devices else x
      return x.reshape(*x.shape[:axis], *tokens, *x.shape[axis + 1 :])

    return jax.tree.map(unfold, out_axes, run(*jax.tree.map(fold, in_axes, trees)))

  if not layout.spans_devices:
    return partial(_once_differentiable, what, local)

  def spec(axis: int) -> PartitionSpec:
    return layout.spec(*[None] * axis, "batch", "tokens") if axis >= 0 else PartitionSpec()

  in_specs, out_specs = jax.tree.map(spec, (in_axes, out_axes))
  # The outputs of a kernel carry no annotation of the mesh axes that they vary over.
  sharded = jax.shard_map(
    local, mesh=layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
  )
  return partial(_once_differentiable, what, sharded)


def with_reverse(forward: Callable, backward: Callable) -> Callable:
  """Returns a function of options and operands whose derivative is a pass of its own.

  Args:
    forward: forward(options, operands) returns the results, and arrays to keep.
    backward: backward(options, these arrays, cotangents of the results) returns the cotangents of
      the operands, as a tuple of one.
  """

  @partial(jax.custom_vjp, nondiff_argnums=(0,))
  def run(options: Options, operands: PyTree) -> PyTree:
    return forward(options, operands)[0]

  run.defvjp(forward, backward)
  return run


def _token_axes(layout: Layout) -> tuple[str, ...]:
  assert layout.rules is not None  # there is a mesh
  return (*layout.rules.batch, *layout.rules.tokens)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _once_differentiable(what: str, call: Callable, *args: PyTree) -> PyTree:
  """Calls a kernel, which has no derivative: one is asked for where a gradient is derived again."""
  return call(*args)


@_once_differentiable.defjvp
def _refuse(what: str, call: Callable, primals: PyTree, tangents: PyTree) -> PyTree:
  del call, primals, tangents
  raise ValueError(
    f"the kernels of {what} have no second derivative; use implementation='reference'"
  )
