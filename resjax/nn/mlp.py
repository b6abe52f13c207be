"""Position-wise feed-forward layers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from resjax.base import Array
from resjax.base.sharding import Layout
from resjax.nn.keys import Keys
from resjax.nn.linear import Linear, shared

_gelu_tanh = functools.partial(jax.nn.gelu, approximate=True)
_gelu_exact = functools.partial(jax.nn.gelu, approximate=False)

# Name -> activation, and whether there is a gate.
_KINDS: dict[str, tuple[Callable[[Array], Array], bool]] = {
  "swiglu": (jax.nn.silu, True),
  "geglu": (_gelu_tanh, True),
  "gelu": (_gelu_tanh, False),
  "gelu_exact": (_gelu_exact, False),
}
MLPS = tuple(_KINDS)


def is_gated(name: str) -> bool:
  """Returns whether the MLP of this name has a W_gate."""
  return _KINDS[name][1]


class MLP(nnx.Module):
  """W_down (act(W_gate x) ⊙ W_up x) where there is a gate, else W_down act(W_up x).

  `swiglu` has silu and a gate, `geglu` gelu and a gate; `gelu` and `gelu_exact` have no gate. The
  gelu of `geglu` and `gelu` is the tanh approximation.

  Args:
    name: one of `MLPS`.
    d_model: the model width D.
    mlp_dim: the inner width F.
    bias: whether the linear maps have biases.
    std: the standard deviation of W_gate and W_up at init.
    out_std: the standard deviation of W_down at init.
    dtype: the dtype of the activations.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.

  Source: GLU variants, arXiv 2002.05202; GPT-2 (tanh); Pythia (exact), arXiv 2304.01373.
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
    common: dict[str, Any] = {"bias": bias, "dtype": dtype, "layout": layout}
    keys, inward = Keys(rngs), ("embed_param", "mlp")
    self.layout = layout
    self.activation, gated = _KINDS[name]
    into = functools.partial(Linear, d_model, mlp_dim, inward, std=std, **common)
    self.gate_proj = into(rngs=keys("gate_proj")) if gated else None
    self.up_proj = into(rngs=keys("up_proj"))
    out: dict[str, Any] = {"std": out_std, "rngs": keys("down_proj")}
    self.down_proj = Linear(mlp_dim, d_model, inward[::-1], **out, **common)

  @jax.named_scope("mlp")
  def __call__(self, x: Array) -> Array:
    """Maps x [B, T, D] to the output [B, T, D]."""
    x = shared(x, self.layout, "mlp")
    hidden = self.up_proj(x)
    if self.gate_proj is None:
      hidden = self.activation(hidden)
    else:
      hidden = self.activation(self.gate_proj(x)) * hidden
    hidden = self.layout.constrain(hidden, "batch", "tokens", "mlp")
    return self.down_proj(hidden)
