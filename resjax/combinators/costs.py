"""What a combinator costs, counted from the class itself: no system declares its own figures.

Parameters are counted from the pytree of the module. Depth state and FLOPs come from the reads and
writes of one token in a Python loop over all layers, which is traced and never run.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend import core

from resjax.base import Array
from resjax.base.sharding import Layout

if TYPE_CHECKING:
  from resjax.combinators.base import Combinator

# These only move, choose or convert values.
_MOVES = """
  broadcast_in_dim concatenate convert_element_type copy dynamic_slice dynamic_update_slice
  expand_dims gather iota name optimization_barrier pad reduce_precision reshape rev scatter
  select_n sharding_constraint slice sort split squeeze stack stop_gradient transpose unstack
"""
# Devices have units of their own for these, and XLA counts them apart from FLOPs.
_TRANSCENDENTAL = "cos erf erf_inv exp exp2 expm1 log log1p logistic pow rsqrt sin sqrt tan tanh"
_FREE = frozenset(f"{_MOVES} {_TRANSCENDENTAL}".split())
_REDUCTIONS = frozenset(("reduce_max", "reduce_min", "reduce_prod", "reduce_sum"))
_OPAQUE = frozenset(("conv_general_dilated", "ffi_call", "pallas_call", "pure_callback", "while"))


def num_parameters(combinator: "Combinator") -> int:
  """Returns the number of values in all parameters of a combinator."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(combinator, nnx.Param)))


def state_bytes_per_token(combinator: "Combinator", dtype: jax.typing.DTypeLike) -> int:
  """Returns the bytes of the depth state after the last layer for one token.

  Args:
    combinator: its parameters may be abstract.
    dtype: of the activations.
  """
  *state, _ = _one_token(combinator, dtype).out_avals
  return sum(leaf.size * leaf.dtype.itemsize for leaf in state if leaf.ndim)


def flops_per_token(combinator: "Combinator") -> int:
  """Returns the forward FLOPs per token of all reads and writes and of the final read.

  A product of matrices [m, k] and [k, n] counts 2 m k n, a sum over n values n − 1, and every other
  arithmetic operation one per value that it makes. Exponentials, roots and the like do not count,
  nor do operations that are the same for all tokens, such as a softmax of parameters. A kernel
  counts as the reference that it replaces.

  Args:
    combinator: its parameters may be abstract.

  Raises:
    ValueError: a read or write runs an operation into which the count cannot look.
  """
  closed = _one_token(combinator, jnp.float32)
  num_shared = len(closed.jaxpr.invars) - 2  # the parameters; the others belong to the token
  return _count(closed.jaxpr, [False] * num_shared + [True, True])


def _one_token(combinator: "Combinator", dtype: jax.typing.DTypeLike) -> core.ClosedJaxpr:
  """Returns all layers as a function of parameters, embedding and one output for all branches.

  It returns the last depth state and the final read.
  """
  graphdef, state = nnx.split(combinator)
  leaves, treedef = jax.tree.flatten(state)
  shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
  return _trace(graphdef, treedef, shapes, jax.ShapeDtypeStruct((1, 1, combinator.d_model), dtype))


@functools.lru_cache(maxsize=16)  # several parts of a run ask for the same figures
def _trace(
  graphdef: nnx.GraphDef,
  treedef: jax.tree_util.PyTreeDef,
  shapes: tuple[jax.ShapeDtypeStruct, ...],
  token: jax.ShapeDtypeStruct,
) -> core.ClosedJaxpr:
  def run(params: Sequence[Array], x: Array, out: Array) -> Any:
    made: Any = nnx.merge(graphdef, jax.tree.unflatten(treedef, params))
    made.scaled_init = True  # nobody learns from what is counted
    made.layout = Layout()  # one token does not divide over the devices of a mesh
    if hasattr(made, "implementation"):
      made.implementation = "reference"
    state = made.init(x)
    for layer in range(made.num_layers):
      for site in made.sites:
        views, tape = made.read(state, layer, site)
        state = made.write(state, layer, site, out, normed=views, tape=tape)
    return state, made.final(state)

  return jax.make_jaxpr(run)(shapes, token, token)


def _count(jaxpr: core.Jaxpr, depends: Sequence[bool]) -> int:
  """Returns the FLOPs of the equations that depend on the token.

  Args:
    jaxpr: of the whole function, or of a part that an equation calls.
    depends: for every argument whether it depends on the token.
  """
  known = {var for var, flag in zip(jaxpr.invars, depends, strict=True) if flag}
  total = 0
  for equation in jaxpr.eqns:
    flags = [isinstance(var, core.Var) and var in known for var in equation.invars]
    if any(flags):
      total += _flops(equation, flags)
      known.update(equation.outvars)
  return total


def _flops(equation: core.JaxprEqn, depends: Sequence[bool]) -> int:
  """Returns the FLOPs of one equation; arguments as in `_count`."""
  name, params = equation.primitive.name, equation.params
  if name in _OPAQUE:
    raise ValueError(
      f"a read or write runs {name!r}, whose FLOPs cannot be counted; "
      "override flops_per_token in this combinator"
    )
  if inner := _parts(params):
    if name in ("scan", "cond"):  # they hand their arguments on in another order
      most = max(_count(part, [True] * len(part.invars)) for part in inner)
      return most * params.get("length", 1)
    return _count(inner[0], depends)
  made: Any = equation.outvars[0].aval
  first: Any = equation.invars[0].aval
  if name in _FREE or not jnp.issubdtype(made.dtype, jnp.inexact):
    return 0
  if name == "dot_general":
    (contracted, _), _ = params["dimension_numbers"]
    return 2 * made.size * math.prod(first.shape[axis] for axis in contracted)
  if name in ("add", "add_any") and any(map(_is_zero, equation.invars)):
    return 0  # the 0 that Python's sum begins with
  return first.size - made.size if name in _REDUCTIONS else made.size


def _parts(params: Mapping[str, Any]) -> list[core.Jaxpr]:
  """Returns the jaxprs that an equation calls: one, or one for every branch."""
  values = itertools.chain(*(v if isinstance(v, tuple) else (v,) for v in params.values()))
  inner = (getattr(value, "jaxpr", value) for value in values)
  return [value for value in inner if isinstance(value, core.Jaxpr)]


def _is_zero(var: core.Var | core.Literal) -> bool:
  return isinstance(var, core.Literal) and bool(var.val == 0)
