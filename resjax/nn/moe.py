"""A mixture of experts in place of an MLP: every token goes through a few of many MLPs.

No token is dropped, whatever the imbalance. `resjax.nn.expert_products` multiplies tokens with
their experts, on one device or several.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Bool, Float, Int

from resjax.base import Array, aligned, wide_dtype, wider
from resjax.base.sharding import Layout
from resjax.nn.expert_products import Form, run_experts
from resjax.nn.linear import MLP, PRODUCT, Keys, Linear, activation_of

SCORES = ("softmax", "sigmoid")
_TINY = 1e-20  # keeps the sum of weights off zero, as in DeepSeek-V3


class Routing(NamedTuple):
  """How the tokens of a batch chose among E experts; sums over tokens that are no padding.

  Attributes:
    counts: how many times each expert was chosen [E].
    entropy: Σ over tokens of −Σ_e p_e ln p_e, where p are the scores divided by their sum.
    balance: n E Σ_e f_e P_e over n tokens, with f_e the share of choices that e has and P_e the
      mean of p_e; at least n where scores and choices agree. Gradients flow through P alone.
    z: Σ over tokens of (ln Σ_e exp(logit_e))².

  Source: Switch Transformer, arXiv 2101.03961, §2.2; ST-MoE, arXiv 2202.08906, §4.
  """

  counts: Array
  entropy: Array
  balance: Array
  z: Array


class Router(NamedTuple):
  """How a token chooses experts by its logits.

  Attributes:
    top_k: how many experts k a token chooses.
    score: one of `SCORES`: what makes scores of logits.
    normalised: whether the weights of the chosen experts are divided by their sum.
    scale: a factor on the weights after that.
  """

  top_k: int
  score: str = "softmax"
  normalised: bool = True
  scale: float = 1.0

  def __call__(
    self, logits: Float[Array, "B T E"], bias: Float[Array, " E"] | None
  ) -> tuple[Float[Array, "B T k"], Int[Array, "B T k"], Float[Array, "B T E"]]:
    """Returns the weights of the chosen experts, their numbers, and the scores of all experts.

    Args:
      logits: float32 or wider.
      bias: is added to the scores where experts are chosen, but not to their weights; it gets no
        gradient.
    """
    scores = jax.nn.softmax(logits) if self.score == "softmax" else jax.nn.sigmoid(logits)
    ranked = lax.stop_gradient(scores if bias is None else scores + aligned(bias, scores))
    chosen = lax.top_k(ranked, self.top_k)[1]
    weights = jnp.take_along_axis(scores, chosen, axis=-1)
    if self.normalised:
      weights = weights / (jnp.sum(weights, -1, keepdims=True) + _TINY)
    return self.scale * weights, chosen, scores


class MoE(nnx.Module):
  """y = s Σ_{e in top k} w_e MLP_e(x) + MLP_shared(x), with w of a router in float32.

  The scores of the experts are softmax(x W) or sigmoid(x W); a token goes through the k experts of
  the largest score, or of the largest score + b where there is a selection bias b, which a trainer
  moves to balance the load without a loss. An expert is an MLP without biases.

  Args:
    name: one of `MLPS`: the kind of the experts.
    d_model: the model width D.
    num_experts: the number of experts E.
    expert_dim: the inner width F of an expert.
    shared_dim: the inner width of the MLP that all tokens go through besides; 0: there is none.
    router: how a token chooses.
    selection_bias: whether there is a b [E], 0 at init.
    std: the standard deviation of W, W_gate and W_up at init.
    out_std: the standard deviation of W_down at init.
    dtype: the dtype of the activations.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.

  Source: Shazeer et al., arXiv 1701.06538; dropless, MegaBlocks, arXiv 2211.15841; shared experts,
  DeepSeekMoE, arXiv 2401.06066; selection bias, arXiv 2408.15664 and DeepSeek-V3, arXiv 2412.19437.
  """

  def __init__(
    self, name: str, d_model: int, num_experts: int, expert_dim: int, *,
    shared_dim: int, router: Router, selection_bias: bool, std: float, out_std: float,
    dtype: jax.typing.DTypeLike, layout: Layout, rngs: nnx.Rngs,
  ):  # fmt: skip
    self.layout, self.route, self.dtype = layout, router, dtype
    self.activation, gated = activation_of(name)
    keys, common = Keys(rngs), dict[str, Any](bias=False, layout=layout)
    wide = wider(dtype, jnp.float32)
    axes = ("embed_param", None)
    # TPUs would round the factors of a float32 product to bfloat16.
    exact: dict[str, Any] = {"dtype": wide, "precision": lax.Precision.HIGHEST}
    self.router = Linear(
      d_model, num_experts, axes, std=std, rngs=keys("router"), **exact, **common
    )
    self.selection_bias = nnx.Param(jnp.zeros(num_experts)) if selection_bias else None
    into = partial(_Kernels, (num_experts, d_model, expert_dim), ("embed_param", "mlp"), std)
    self.gate_proj = into(keys("gate_proj")) if gated else None
    self.up_proj = into(keys("up_proj"))
    out = (num_experts, expert_dim, d_model), ("mlp", "embed_param"), out_std
    self.down_proj = _Kernels(*out, keys("down_proj"))
    mlp: dict[str, Any] = {"std": std, "out_std": out_std, "dtype": dtype, "rngs": keys("shared")}
    self.shared = MLP(name, d_model, shared_dim, **mlp, **common) if shared_dim else None

  @jax.named_scope("moe")
  def __call__(
    self, x: Float[Array, "B T D"], counted: Bool[Array, "B T"]
  ) -> tuple[Float[Array, "B T D"], Routing]:
    """Maps x to the output, and tells how the `counted` tokens chose."""
    # The product may be split over D of W; scores and choices are made for whole tokens.
    logits = self.layout.constrain(self.router(x), "batch", "tokens", None)
    bias = None if self.selection_bias is None else self.selection_bias[...]
    weights, chosen, scores = self.route(logits, bias)
    kernels = [k.kernel[...] for k in (self.gate_proj, self.up_proj, self.down_proj) if k]
    out = checkpoint_name(self._experts(x, weights, chosen, kernels), PRODUCT)
    routing = _routing(logits, scores, chosen, counted)
    return (out if self.shared is None else out + self.shared(x)), routing

  def _experts(self, x: Array, weights: Array, chosen: Array, kernels: list[Array]) -> Array:
    """Returns the weighted sum [B, T, D] of what the chosen experts make of x."""
    layout, form = self.layout, Form(self.activation, self.dtype, self.layout.platform)
    if not layout.spans_devices:
      return run_experts(form, x, weights, chosen, *kernels)
    # As in `Layout.constrain`, what does not divide stays whole: a single token of decoding.
    rows = [
      axis if size % layout.num_shards(axis) == 0 else None
      for axis, size in zip(("batch", "tokens"), x.shape, strict=False)
    ]
    tokens = layout.spec(*rows, None)
    owners, embed, mlp = (
      tuple(name for name in layout.axes(axis) if layout.mesh.shape[name] > 1)
      for axis in ("experts", "embed_param", "mlp")
    )
    others = tuple(name for name in owners if name in jax.tree.leaves(tuple(tokens)))
    added = tuple(name for name in (*owners, *mlp) if name not in others)
    form = form._replace(owners=owners, others=others, added=added, embed=embed)
    inward = layout.spec("experts", "embed_param", "mlp")
    outward = layout.spec("experts", "mlp", "embed_param")
    mapped = jax.shard_map(
      partial(run_experts, form),
      mesh=layout.mesh,
      in_specs=(tokens, tokens, tokens, *[inward] * (len(kernels) - 1), outward),
      out_specs=tokens,
      check_vma=False,
    )
    # Where devices add up the gradients of x, their parts are float32.
    return mapped(x.astype(wide_dtype(x)) if form.sums else x, weights, chosen, *kernels)


class _Kernels(nnx.Module):
  """One matrix of each expert, [E, d_in, d_out] ~ N(0, std²), float32."""

  def __init__(
    self, shape: tuple[int, int, int], axes: tuple[str, str], std: float, rngs: nnx.Rngs
  ):
    init = nnx.initializers.normal(std)
    self.kernel = nnx.Param(init(rngs.params(), shape), axes=("experts", *axes))


def _routing(logits: Array, scores: Array, chosen: Array, counted: Array) -> Routing:
  """Returns the sums over the counted tokens, see `Routing`."""
  num_experts, top_k = logits.shape[-1], chosen.shape[-1]
  p = scores / (jnp.sum(scores, -1, keepdims=True) + _TINY)
  rows = counted.astype(p.dtype)
  hits = jax.nn.one_hot(chosen, num_experts, dtype=p.dtype)
  counts = jnp.sum(hits * rows[..., None, None], axis=(0, 1, 2))
  mass = jnp.sum(p * rows[..., None], axis=(0, 1))
  balance = num_experts / (top_k * jnp.maximum(jnp.sum(rows), 1)) * jnp.sum(counts * mass)
  entropy = jnp.sum(jax.scipy.special.entr(lax.stop_gradient(p)) * rows[..., None])
  return Routing(counts, entropy, balance, jnp.sum(rows * jax.nn.logsumexp(logits, -1) ** 2))
