"""A small model around a combinator, written without resjax.models: norm, tanh MLP, per site.

The attention site mixes tokens by a causal mean, the others do not mix tokens.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax import combinators
from resjax.base import Array, PyTree, aligned, wide_dtype
from resjax.combinators import Combinator, Views
from resjax.models import depth

B, T, D, F, L = 2, 4, 8, 12, 5
SITES = ("attention", "mlp")

# forward(combinator, layers, x) -> output [B, T, D].
Forward = Callable[[Combinator, PyTree, Any], Array]
Branch = Callable[..., tuple[Views, Array]]


def layers(
  num_layers: int = L, sites: tuple[str, ...] = SITES, dtype: Any = np.float32
) -> dict[str, dict[str, np.ndarray]]:
  """Returns stacked parameters of the branches, by site: gain [L, D], up, down."""
  rng = np.random.default_rng(0)
  drawn = {
    site: {
      "gain": rng.uniform(0.5, 1.5, (num_layers, D)),
      "up": rng.normal(size=(num_layers, D, F)) / np.sqrt(D),
      "down": rng.normal(size=(num_layers, F, D)) / np.sqrt(F),
    }
    for site in sites
  }
  return jax.tree.map(lambda a: a.astype(dtype), drawn)


def embeddings(dtype: Any = np.float32) -> np.ndarray:
  """Returns the embeddings with which the layers start [B, T, D]."""
  return np.random.default_rng(1).normal(size=(B, T, D)).astype(dtype)


def rms_norm(x: Array, eps: float = 1e-6) -> Array:
  """Returns x / sqrt(mean(x²) + eps) in the dtype of x."""
  wide = x.astype(wide_dtype(x))
  return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)).astype(x.dtype)


def branch(
  layer: PyTree, site: str, views: Views, context: PyTree = None, *,
  eps: float = 1e-6, mix_tokens: Any = True, pre_norm: bool = True,
) -> tuple[Views, Array]:  # fmt: skip
  """Runs the branch of a site, as `resjax.models.depth.run` calls it."""
  normed = {name: rms_norm(x, eps) if pre_norm else x for name, x in views.items()}
  p = jax.tree.map(lambda leaf: leaf.astype(normed["x"].dtype), layer[site])
  x: Any = normed["x"]
  if set(normed) > {"x"}:  # a site that is offered q, k and v depends on all of them
    x = sum(c * normed.get(name, x) for name, c in zip("qkv", (0.5, 0.3, 0.2), strict=True))
  hidden = jnp.tanh((x * aligned(p["gain"], x)) @ p["up"])
  if site == "attention" and mix_tokens is not False:
    counts = jnp.arange(1, x.shape[1] + 1, dtype=x.dtype)[None, :, None]
    mixed = jnp.cumsum(hidden, axis=1) / counts
    hidden = mixed if mix_tokens is True else jnp.where(mix_tokens, mixed, hidden)  # or traced
  return normed, hidden @ p["down"]


token_local_branch = functools.partial(branch, mix_tokens=False)


def build(
  name: str, options: Mapping[str, Any], *,
  num_layers: int = L, sites: tuple[str, ...] = SITES, random: bool = True,
) -> Combinator:  # fmt: skip
  """Returns a combinator by name, `moved` if `random`."""
  fresh = combinators.build(
    name,
    num_layers=num_layers,
    d_model=D,
    sites=sites,
    rngs=nnx.Rngs(0),
    scaled_init=True,
    **options,
  )
  return moved(fresh) if random else fresh


def moved(fresh: Combinator) -> Combinator:
  """Returns a combinator whose parameters are moved away from their initial values.

  By 0.5 · normal; matrices (the decayed parameters) by as much in their outputs for normal inputs.
  """
  rng = np.random.default_rng(2)
  graphdef, state = nnx.split(fresh)

  def move(path: Any, leaf: Array) -> Array:
    fan_in = leaf.shape[-2] if path[0].key in fresh.decayed_parameters else 1
    by = (0.5 * fan_in**-0.5 * rng.normal(size=leaf.shape)).astype(leaf.dtype)
    return jax.device_put(np.asarray(leaf) + by)

  return nnx.merge(graphdef, jax.tree.map_with_path(move, state))


def parameters(combinator: Combinator) -> dict[str, Any]:
  """Returns numpy arrays by attribute name."""
  return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(combinator)))


def states_by_hand(
  combinator: Combinator, layers: PyTree, x: Any, branch: Branch = branch
) -> Iterator[PyTree]:
  """Yields the state after init and after every write, by the loop of the protocol's docstring."""
  branch = functools.partial(branch, pre_norm=combinator.pre_norm)
  state = combinator.init(x)
  yield state
  for layer in range(combinator.num_layers):
    row = jax.tree.map(lambda leaf, i=layer: leaf[i], layers)
    for site in combinator.sites:
      views, tape = combinator.read(state, layer, site)
      normed, out = branch(row, site, views, None)
      state = combinator.write(state, layer, site, out, normed=normed, tape=tape)
      yield state


def by_hand(combinator: Combinator, layers: PyTree, x: Any, branch: Branch = branch) -> Array:
  """Returns the output [B, T, D] of the loop of the protocol's docstring."""
  *_, last = states_by_hand(combinator, layers, x, branch)
  return combinator.final(last)


def compiled_by_hand(
  combinator: Combinator, layers: PyTree, x: Any, branch: Branch = branch
) -> Array:
  """Returns `by_hand`, in one program: less to compile than one for every operation and shape."""
  return _compiled_by_hand(*nnx.split(combinator), layers, x, branch)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _compiled_by_hand(
  graphdef: Any, state: PyTree, layers: PyTree, x: Array, branch: Branch
) -> Array:
  return by_hand(nnx.merge(graphdef, state), layers, x, branch)


def run(
  combinator: Combinator, layers: PyTree, x: Any, branch: Branch = branch, **options: Any
) -> Array:
  """Returns the output of `resjax.models.depth.run`, whose other arguments are `options`."""
  branch = functools.partial(branch, pre_norm=combinator.pre_norm)
  return depth.run(combinator, layers, x, branch, **options)


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
  """Returns the weights of outputs in the scalar whose gradients are compared."""
  return np.random.default_rng(3).normal(size=shape)


def value_and_gradients(
  forward: Forward, combinator: Combinator, layers: PyTree, x: Any
) -> tuple[Array, tuple[PyTree, PyTree, Array]]:
  """Returns y, and the gradients of `Σ cotangent · y` by parameters, layers and x."""
  graphdef, state = nnx.split(combinator)

  def f(params: PyTree, layers: PyTree, x: Array) -> Array:
    return forward(nnx.merge(graphdef, params), layers, x)

  y, vjp = jax.vjp(f, state, layers, x)
  params, layers, x = vjp(jnp.asarray(cotangent(y.shape), y.dtype))
  return y, (nnx.to_pure_dict(params), layers, x)


def jitted(
  forward: Forward, combinator: Combinator, layers: PyTree, x: Any
) -> tuple[Array, tuple[PyTree, PyTree, Array]]:
  """Returns `value_and_gradients` in one program, for all combinators that differ in values alone.

  It is compiled once for each `forward`, and for each structure of the combinator.
  """
  return _jitted(forward, *nnx.split(combinator), layers, x)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _jitted(
  forward: Forward, graphdef: Any, state: PyTree, layers: PyTree, x: Array
) -> tuple[Array, tuple[PyTree, PyTree, Array]]:
  return value_and_gradients(forward, nnx.merge(graphdef, state), layers, x)
