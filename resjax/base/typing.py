"""The axis letters of resjax, the same in names, einsums, configs and docs.

| letter | axis                      | config field          |
|--------|---------------------------|-----------------------|
| B      | batch (rows)              | train.batch_size      |
| T      | tokens in a row           | data.seq_len          |
| D      | model width               | model.d_model         |
| L      | layers                    | model.num_layers      |
| N      | depth sources             | -                     |
| R      | residual streams          | -                     |
| H      | query heads               | model.num_heads       |
| K      | key/value heads           | model.num_kv_heads    |
| C      | head width                | model.head_dim        |
| F      | MLP width                 | model.mlp_dim         |
| E      | experts of a mixture      | model.moe.num_experts |
| V      | vocabulary                | data.tokenizer        |
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
  Array = jax.Array
else:  # checks of annotations take both, as functions do
  Array = jax.Array | np.ndarray
PyTree = Any
_P = ParamSpec("_P")
_R = TypeVar("_R")
NOT_ASKED = -1  # as a target: nothing is asked there, and the loss leaves it out


def wide_dtype(x: Array) -> jnp.dtype:
  """Returns the dtype in which values of `x` are summed: float32 or wider."""
  return wider(x.dtype, jnp.float32)


def wider(a: jax.typing.DTypeLike, b: jax.typing.DTypeLike) -> jnp.dtype:
  """Returns the dtype that holds values of both, also where JAX is set to promote none."""
  with jax.numpy_dtype_promotion("standard"):
    return jnp.promote_types(a, b)


def aligned(x: Array, like: Array) -> Array:
  """Returns x with axes of size 1 in front, as many as `like` has axes more.

  So two arrays broadcast that share their last axes, such as a gain [D] and activations [..., D],
  also where JAX is set to add no axis by itself (`jax_numpy_rank_promotion`).
  """
  return jnp.expand_dims(x, range(like.ndim - x.ndim))


def promoting(function: Callable[_P, _R]) -> Callable[_P, _R]:
  """Returns a function of another library, which runs with JAX's own defaults of promotion.

  Optax and Flax multiply counts by numbers and bfloat16 by float32, and leave it to JAX to promote
  them, which a program may forbid (`jax_numpy_dtype_promotion`, `jax_numpy_rank_promotion`).
  """

  @functools.wraps(function)
  def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
      return function(*args, **kwargs)

  return call


def rounded(x: Array, dtype: jax.typing.DTypeLike) -> Array:
  """Returns x, a sum that devices hold parts of, in `dtype`; the parts are added as wide as x is.

  A cast alone would let compilers (TPU) round the parts first and add in the narrow type.
  """
  if jnp.finfo(dtype).bits >= jnp.finfo(x.dtype).bits:
    return x.astype(dtype)
  info = jnp.finfo(dtype)
  return jax.lax.reduce_precision(x, info.nexp, info.nmant).astype(dtype)
