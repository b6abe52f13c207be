"""Position-wise feed-forward layers."""

import jax
from flax import nnx

from resjax.nn.linear import Linear, shared
from resjax.sharding import Layout
from resjax.typing import Array

MLPS = ("swiglu", "gelu")


class MLP(nnx.Module):
  """swiglu: W_down (silu(W_gate x) ⊙ W_up x);  gelu: W_down gelu(W_up x), tanh approximation.

  Args:
    name: `swiglu` or `gelu`.
    d_model: D.
    mlp_dim: F.
    bias: whether the linear maps have biases.
    std: standard deviation of W_gate and W_up at init.
    out_std: of W_down.
    dtype: of the activations.
    layout: of the activations.
    rngs: source of the initial values.

  Source: GLU variants, arXiv 2002.05202; GPT-2.
  """

  def __init__(
    self,
    name: str,
    d_model: int,
    mlp_dim: int,
    *,
    bias: bool,
    std: float,
    out_std: float,
    dtype: jax.typing.DTypeLike,
    layout: Layout,
    rngs: nnx.Rngs,
  ):
    common = {"bias": bias, "dtype": dtype, "layout": layout, "rngs": rngs}
    inward = ("embed_param", "mlp")
    self.layout = layout
    gated = name == "swiglu"
    self.gate_proj = Linear(d_model, mlp_dim, inward, std=std, **common) if gated else None
    self.up_proj = Linear(d_model, mlp_dim, inward, std=std, **common)
    self.down_proj = Linear(mlp_dim, d_model, inward[::-1], std=out_std, **common)

  def __call__(self, x: Array) -> Array:
    """Maps [B, T, D] to [B, T, D]."""
    x = shared(x, self.layout, "mlp")
    hidden = self.up_proj(x)
    if self.gate_proj is None:
      hidden = jax.nn.gelu(hidden, approximate=True)
    else:
      hidden = jax.nn.silu(self.gate_proj(x)) * hidden
    hidden = self.layout.constrain(hidden, "batch", "tokens", "mlp")
    return self.down_proj(hidden)
