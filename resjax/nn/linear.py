"""Linear maps with logical axes."""

import jax
from flax import nnx


def linear(
  d_in: int,
  d_out: int,
  axes: tuple[str, str],
  *,
  bias: bool,
  std: float,
  dtype: jax.typing.DTypeLike,
  rngs: nnx.Rngs,
) -> nnx.Linear:
  """Returns y = x W + b with W [d_in, d_out] ~ N(0, std²), float32, computed in `dtype`.

  Args:
    d_in: size of the last axis of x.
    d_out: size of the last axis of y.
    axes: logical axes of W, see `resjax.sharding.Rules`.
    bias: whether there is a b, zero at init.
    std: standard deviation of W at init.
    dtype: of the activations.
    rngs: source of the initial values.
  """
  return nnx.Linear(
    d_in,
    d_out,
    use_bias=bias,
    dtype=dtype,
    kernel_init=nnx.initializers.normal(std),
    kernel_metadata={"axes": axes},
    bias_metadata={"axes": axes[1:]} if bias else {},
    rngs=rngs,
  )
