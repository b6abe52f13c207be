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
| V      | vocabulary                | data.tokenizer        |
"""

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
PyTree = Any
NOT_ASKED = -1  # as a target: nothing is asked there, and the loss leaves it out


def wide_dtype(x: Array) -> jnp.dtype:
  """Returns the dtype in which values of `x` are summed: float32 or wider."""
  return jnp.promote_types(x.dtype, jnp.float32)


def rounded(x: Array, dtype: jax.typing.DTypeLike) -> Array:
  """Returns x, a sum that devices hold parts of, in `dtype`; the parts are added as wide as x is.

  A cast alone would let compilers (TPU) round the parts first and add in the narrow type.
  """
  if jnp.finfo(dtype).bits >= jnp.finfo(x.dtype).bits:
    return x.astype(dtype)
  info = jnp.finfo(dtype)
  return jax.lax.reduce_precision(x, info.nexp, info.nmant).astype(dtype)
