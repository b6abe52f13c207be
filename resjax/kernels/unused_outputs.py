"""Calls that leave out outputs that nobody uses.

Where a layer is computed again for its reverse pass, not all that it returned is needed again. JAX
drops operations without users, but keeps a kernel with all its outputs if one of them has a user.
A call of this module tells a function which of its outputs have users, once JAX has found out.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval

from resjax.base import Array

Run = Callable[..., Sequence[Array]]


def call(run: Run, shapes: Sequence[jax.ShapeDtypeStruct], *arrays: Array) -> list[Array]:
  """Returns the outputs of a function.

  Args:
    run: run(needed, *arrays) returns, in order, the outputs for which the tuple `needed`
      has True. It is traced when the program is lowered, and may hold no tracers.
    shapes: of all outputs.
    arrays: inputs.
  """
  return _call.bind(*arrays, run=run, shapes=tuple(shapes), needed=(True,) * len(shapes))


def _run(*arrays: Array, run: Run, shapes: Any, needed: tuple[bool, ...]) -> Sequence[Array]:
  del shapes
  return run(needed, *arrays)


def _types(*arrays: Any, run: Run, shapes: Any, needed: tuple[bool, ...]) -> list[ShapedArray]:
  del arrays, run
  return [ShapedArray(x.shape, x.dtype) for x, keep in zip(shapes, needed, strict=True) if keep]


def _without_unused(used: list[bool], *given: Any) -> tuple[list[bool], Any]:
  """Returns which inputs are used, and the equation with the outputs that are.

  Args:
    used: which outputs of the equation have users.
    given: the equation comes last; JAX 0.12 says before it which inputs are read afterwards.
  """
  equation = given[-1]
  if not any(used):
    return [False] * len(equation.invars), None
  before = iter(used)
  needed = tuple(keep and next(before) for keep in equation.params["needed"])
  outputs = [x for x, keep in zip(equation.outvars, used, strict=True) if keep]
  params = equation.params | {"needed": needed}
  return [True] * len(equation.invars), equation.replace(outvars=outputs, params=params)


def _batched(
  axis: Any, arrays: Sequence[Array], axes: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
  """Runs all at once, split over the devices that the axis of `jax.vmap` is split over."""
  run = partial(_run, **params)
  split = {"axis_size": axis.size, "spmd_axis_name": axis.spmd_name}
  found = jax.vmap(run, in_axes=tuple(axes), **split)(*arrays)
  return found, [0] * len(found)


def _derivative(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> Any:
  tangents = [ad.instantiate_zeros(tangent) for tangent in tangents]
  return jax.jvp(partial(_run, **params), tuple(primals), tuple(tangents))


_call = Primitive("call_with_unused_outputs")
_call.multiple_results = True
_call.def_impl(_run)
_call.def_abstract_eval(_types)
mlir.register_lowering(_call, mlir.lower_fun(_run, multiple_results=True))
partial_eval.dce_rules[_call] = _without_unused
batching.fancy_primitive_batchers[_call] = _batched
ad.primitive_jvps[_call] = _derivative
