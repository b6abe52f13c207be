"""Running a stack of layers through a combinator: one place, three strategies, one plain loop.

A layer is, for each site, read, branch, write. `run` repeats it over L stacked layers: as a scan
whose treatment of the depth state the combinator chooses (`Combinator.strategy`), or as a Python
loop that gives the same values and gradients.

  carry         lax.scan; the state has a fixed shape and is kept once per layer.
  depth_blocks  outer scan over depth blocks, inner scan over the layers of a block. Sources lie
                in one bank that the inner scan closes over.
  history       the same with blocks of one layer, which appends its sources by itself.

A reverse pass keeps what every step saw. A bank in a scan's carry would be kept once per step,
O(L²) memory; `append_scan` keeps the final bank alone, and every step reads its valid part.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.combinators.base import Combinator, DepthState, PerLayer, Views
from resjax.kernels.depth_attention import Sources, make_bank, store
from resjax.typing import Array, PyTree

Branch = Callable[[PyTree, str, Views, PyTree], tuple[Views, Array]]
Remat = Literal["none", "full", "dots"]

_POLICIES = {
  "full": jax.checkpoint_policies.nothing_saveable,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
REMAT = ("none", *_POLICIES)


def run(
  combinator: Combinator,
  layers: PyTree,
  x: Array,
  branch: Branch,
  *,
  context: PyTree = None,
  remat: Remat = "none",
  unroll: bool = False,
) -> Array:
  """Runs L layers through a combinator: init, L times (read, branch, write), final.

  Args:
    combinator: the residual system, for L layers.
    layers: pytree of arrays [L, ...], the stacked parameters of the layers.
    x: embeddings [B, T, D].
    branch: what runs at a site, a pure function: branch(layer parameters, site, views, context)
      returns the normalised views and the output [B, T, D].
    context: arrays that every branch may read (positions, segment ids); no gradient flows there.
    remat: what a layer keeps for the reverse pass. `none`: all; `full`: its inputs; `dots`: its
      inputs and the results of its matrix products with parameters.
    unroll: a Python loop over layers instead of a scan; for tests and very few layers.

  Returns:
    The combinator's final read [B, T, D].

  Raises:
    ValueError: `layers` has another number of layers than the combinator, or remat is unknown.
  """
  if remat not in REMAT:
    raise ValueError(f"config.model.remat={remat!r} is not known; allowed: {', '.join(REMAT)}")
  graphdef, rows, shared = nnx.split(combinator, PerLayer, ...)
  stack = _Stack(layers, rows)
  for leaf in jax.tree.leaves(stack):
    if leaf.shape[0] != combinator.num_layers:
      raise ValueError(
        f"a stacked parameter has {leaf.shape[0]} layers, its combinator {combinator.num_layers}"
      )
  step = functools.partial(_layer, graphdef, branch, remat)
  drive = _loop if unroll else _STRATEGIES[combinator.strategy]
  state = drive(combinator, step, combinator.init(x), shared, stack, lax.stop_gradient(context))
  return combinator.final(state)


class _Stack(NamedTuple):
  """What differs from layer to layer; leading axis L, or none for one layer."""

  layers: PyTree
  rows: PyTree  # the combinator's PerLayer parameters


def _layer(graphdef, branch, remat, index, state, shared, one: _Stack, context) -> PyTree:
  """Returns the depth state after layer `index`."""

  def sublayers(state, shared, one, context):
    combinator = nnx.merge(graphdef, jax.tree.map(lambda row: row[None], one.rows), shared)
    for site in combinator.sites:
      views, tape = combinator.read(state, index, site)
      normed, out = branch(one.layers, site, views, context)
      state = combinator.write(state, index, site, out, normed=normed, tape=tape)
    return state

  if remat != "none":
    sublayers = jax.checkpoint(sublayers, policy=_POLICIES[remat], prevent_cse=False)
  return sublayers(state, shared, one, context)


def _loop(combinator, step, state, shared, stack: _Stack, context) -> PyTree:
  for index in range(combinator.num_layers):
    one = jax.tree.map(lambda leaf, i=index: leaf[i], stack)
    state = step(index, state, shared, one, context)
  return state


def _carry(combinator, step, state, shared, stack: _Stack, context) -> PyTree:
  def body(state, indexed):
    index, one = indexed
    return step(index, state, shared, one, context), None

  return lax.scan(body, state, (jnp.arange(combinator.num_layers), stack))[0]


def _append(combinator, step, state: DepthState, shared, stack: _Stack, context) -> DepthState:
  """Full depth blocks in an `append_scan`, then the shorter last one, if any."""
  per_block = combinator.layers_per_block
  whole, rest = divmod(combinator.num_layers, per_block)

  def block(bank, num_valid, index, running, shared, stack, context):
    sources = Sources(bank=bank, num_valid=num_valid)

    def body(running, indexed):
      layer, one = indexed
      return step(layer, DepthState(sources, running), shared, one, context)

    if per_block == 1:
      state = body(running, (index, jax.tree.map(lambda leaf: leaf[0], stack)))
    else:
      layers = index * per_block + _indices(stack)
      scanned = lax.scan(lambda *a: (body(*a).running, None), running, (layers, stack))
      state = DepthState(sources, scanned[0])
    state = combinator.close_block(state)
    return state.sources.recent, state.running

  blocks = jax.tree.map(
    lambda leaf: leaf[: whole * per_block].reshape(whole, per_block, *leaf.shape[1:]), stack
  )
  bank, num_valid, running = append_scan(
    block, state.sources.recent, state.running, shared, blocks, context
  )
  recent = ()
  if rest:
    tail = jax.tree.map(lambda leaf: leaf[whole * per_block :], stack)
    recent, running = block(bank, num_valid, whole, running, shared, tail, context)
  return DepthState(Sources(recent, bank, num_valid), running)


_STRATEGIES = {"carry": _carry, "depth_blocks": _append, "history": _append}


def append_scan(
  step: Callable[..., tuple[tuple[Array, ...], PyTree]],
  sources: tuple[Array, ...],
  running: PyTree,
  shared: PyTree,
  xs: PyTree,
  context: PyTree,
) -> tuple[Array, int, PyTree]:
  """A scan whose steps append sources to a bank and read those appended before.

  step(bank, num_valid, i, running, shared, x, context) returns (appended sources, running) for
  step i, where only bank[:num_valid] may be read. Reverse-mode memory is one final bank, and per
  step what it keeps besides the bank, `shared` and `x`: O(steps), not O(steps²).

  Args:
    step: pure; closes over no array.
    sources: the first sources, each [B, T, D].
    running: pytree of arrays carried from step to step.
    shared: pytree of arrays that all steps read.
    xs: pytree of arrays with a leading axis, one row per step.
    context: pytree of arrays without gradient.

  Returns:
    The bank [N, B, T, D], all of it valid; N; and `running` after the last step.
  """
  num_steps = jax.tree.leaves(xs)[0].shape[0]
  first = jax.tree.map(lambda leaf: leaf[0], xs)
  bank = make_bank(sources, len(sources))
  appended, _ = jax.eval_shape(step, bank, 0, 0, running, shared, first, context)
  sizes = _Sizes(len(sources), len(appended), len(sources) + num_steps * len(appended))
  bank, running = _append_scan(step, sizes, sources, running, shared, xs, context)
  return bank, sizes.bank, running


class _Sizes(NamedTuple):
  """Numbers of sources: at the start, per step, in the full bank."""

  start: int
  step: int
  bank: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _append_scan(step, sizes: _Sizes, sources, running, shared, xs, context):
  def body(carry, indexed):
    bank, running = carry
    i, x = indexed
    num_valid = sizes.start + i * sizes.step
    appended, running = step(bank, num_valid, i, running, shared, x, context)
    return (store(bank, num_valid, appended), running), None

  start = make_bank(sources, sizes.bank), running
  (bank, running), _ = lax.scan(body, start, (_indices(xs), xs))
  return bank, running


def _append_scan_forward(step, sizes: _Sizes, sources, running, shared, xs, context):
  def body(carry, indexed):
    bank, running = carry
    i, x = indexed
    num_valid = sizes.start + i * sizes.step

    def differentiable(bank, running, shared, x):
      return step(bank, num_valid, i, running, shared, x, context)

    (appended, running), vjp = jax.vjp(differentiable, bank, running, shared, x)
    # What the reverse pass can hand in again is not kept once per step.
    vjp.args_res[0] = vjp.args_res[2] = vjp.args_res[3] = None
    return (store(bank, num_valid, appended), running), vjp

  start = make_bank(sources, sizes.bank), running
  (bank, running), vjps = lax.scan(body, start, (_indices(xs), xs))
  return (bank, running), (vjps, bank, shared, xs)


def _append_scan_backward(step, sizes: _Sizes, residuals, cotangents):
  vjps, bank, shared, xs = residuals
  bank_cotangent, running_cotangent = cotangents

  def body(carry, indexed):
    d_bank, d_running, d_shared = carry
    i, vjp, x = indexed
    num_valid = sizes.start + i * sizes.step
    vjp.args_res[0], vjp.args_res[2], vjp.args_res[3] = bank, shared, x
    d_appended = tuple(
      lax.dynamic_index_in_dim(d_bank, num_valid + k, keepdims=False) for k in range(sizes.step)
    )
    d_bank_step, d_running, d_shared_step, d_x = vjp((d_appended, d_running))
    d_bank, d_shared = jax.tree.map(jnp.add, (d_bank, d_shared), (d_bank_step, d_shared_step))
    return (d_bank, d_running, d_shared), d_x

  start = bank_cotangent, running_cotangent, jax.tree.map(jnp.zeros_like, shared)
  steps = _indices(xs), vjps, xs
  (d_bank, d_running, d_shared), d_xs = lax.scan(body, start, steps, reverse=True)
  return tuple(d_bank[: sizes.start]), d_running, d_shared, d_xs, None


def _indices(xs: PyTree) -> Array:
  return jnp.arange(jax.tree.leaves(xs)[0].shape[0])


_append_scan.defvjp(_append_scan_forward, _append_scan_backward)
