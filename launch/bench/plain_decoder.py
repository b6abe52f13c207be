"""The training step that somebody writes who needs no library: a decoder in plain jnp, and optax.

It has the sizes of a run with `standard`, RMSNorm, RoPE, SwiGLU and tied embeddings, takes rows
without gaps, and measures nothing but the loss: no segments, metrics, guards, loops over chunks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from resjax.base import Array, PyTree
from resjax.models import DecoderConfig
from resjax.train.runs import Run

_IS: dict[str, Any] = {
  "norm": "rmsnorm", "mlp": "swiglu", "positions": "rope", "bias": "none",
  "tied_embeddings": True, "windows": (0,), "qk_norm": False, "depth": "scan",
}  # fmt: skip


def stepper(run: Run, tokens: Array, targets: Array) -> tuple[Callable[[], Array], int]:
  """Returns a function that launches a step and returns its loss, and the number of parameters.

  Args:
    run: the run whose sizes, rates and recomputation it has.
    tokens: [B, T].
    targets: [B, T], the tokens that follow.

  Raises:
    ValueError: it would do other work than the run: another decoder, microbatches, several devices.
  """
  c, o = run.decoder, run.optim
  other = {name: getattr(c, name) for name, value in _IS.items() if getattr(c, name) != value}
  devices, parts = run.layout.mesh.size, run.train.microbatches
  if other or (devices, parts) != (1, 1):
    raise ValueError(
      f"`plain` has {_IS}, one device and one microbatch; given: {other}, {devices} devices and "
      f"{parts} microbatches; leave it out of --residuals"
    )
  decay = optax.adamw(o.learning_rate, o.b1, o.b2, o.eps, weight_decay=o.weight_decay)
  optimizer = optax.chain(optax.clip_by_global_norm(o.clip_norm), decay)
  params = parameters(c)
  state = optimizer.init(params)

  @partial(jax.jit, donate_argnums=(0, 1))
  def train(params: PyTree, state: PyTree) -> tuple[PyTree, PyTree, Array]:
    value, gradients = jax.value_and_grad(loss)(params, c, tokens, targets)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value

  def step() -> Array:
    nonlocal params, state
    params, state, value = train(params, state)
    return value

  return step, sum(leaf.size for leaf in jax.tree.leaves(params))


def parameters(c: DecoderConfig) -> dict[str, Any]:
  """Returns random parameters: the embedding [V, D], a gain [D], and of layers arrays [L, ...]."""
  wide, narrow = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
  shapes = {
    "q": (c.d_model, wide), "k": (c.d_model, narrow), "v": (c.d_model, narrow),
    "o": (wide, c.d_model), "gate": (c.d_model, c.mlp_dim), "up": (c.d_model, c.mlp_dim),
    "down": (c.mlp_dim, c.d_model),
  }  # fmt: skip
  keys = iter(jax.random.split(jax.random.key(0), len(shapes) + 1))

  def drawn(*shape: int) -> Array:
    return c.init_std * jax.random.normal(next(keys), shape)

  layers = {name: drawn(c.num_layers, *shape) for name, shape in shapes.items()}
  layers |= {name: jnp.ones((c.num_layers, c.d_model)) for name in ("norm", "mlp_norm")}
  return {
    "embedding": drawn(c.vocab_size, c.d_model), "layers": layers, "norm": jnp.ones(c.d_model)
  }  # fmt: skip


def loss(params: PyTree, c: DecoderConfig, tokens: Array, targets: Array) -> Array:
  """Returns the mean cross-entropy of the targets."""
  x = params["embedding"][tokens].astype(c.dtype)
  once = partial(_layer, c, _rotation(c, tokens.shape[1]))
  layer = once if c.remat == "none" else jax.checkpoint(once)
  x, _ = jax.lax.scan(lambda x, row: (layer(x, row), None), x, params["layers"])
  x = _normed(x, params["norm"], c.norm_eps)
  logits = (x @ params["embedding"].T.astype(c.dtype)).astype(jnp.float32)
  return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def _layer(c: DecoderConfig, rotation: tuple[Array, Array], x: Array, p: dict) -> Array:
  p = {name: leaf.astype(c.dtype) for name, leaf in p.items()}
  h = _normed(x, p["norm"], c.norm_eps)
  q, k, v = ((h @ p[name]).reshape(*h.shape[:2], -1, c.head_dim) for name in "qkv")
  q, k = (_rotated(a, rotation) for a in (q, k))
  out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
  x = x + out.reshape(*h.shape[:2], -1) @ p["o"]
  h = _normed(x, p["mlp_norm"], c.norm_eps)
  return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def _normed(x: Array, scale: Array, eps: float) -> Array:
  wide = x.astype(jnp.float32)
  normed = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + eps)
  return (normed * scale.astype(jnp.float32)).astype(x.dtype)


def _rotation(c: DecoderConfig, length: int) -> tuple[Array, Array]:
  frequencies = c.rope_theta ** (-jnp.arange(0, c.head_dim, 2, dtype=jnp.float32) / c.head_dim)
  angles = jnp.arange(length, dtype=jnp.float32)[:, None, None] * frequencies
  return jnp.cos(angles), jnp.sin(angles)


def _rotated(x: Array, rotation: tuple[Array, Array]) -> Array:
  cos, sin = rotation
  a, b = jnp.split(x.astype(jnp.float32), 2, -1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
