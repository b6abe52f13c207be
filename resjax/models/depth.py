"""Running a stack of layers through a combinator: one place, three strategies, one plain loop.

A layer is, for each site, read, branch, write. `run` repeats it over L stacked layers: as a scan
whose treatment of the depth state the combinator chooses (`Combinator.strategy`), or as a Python
loop that gives the same values and gradients.

  carry         lax.scan; the state has a fixed shape and is kept once per layer.
  history       the state is a growing list of sources: `append_scan`, with a bank of sources to
                which every layer appends.
  depth_blocks  the same, where only the last layer of a depth block appends; what the layers
                of a block carry among them is kept once per layer, like a `carry`.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.combinators.base import Combinator, DepthState, TokenContext, Views
from resjax.kernels.depth_attention import Sources
from resjax.models.append_scan import append_scan
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
  tokens: TokenContext | None = None,
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
    tokens: for combinators that mix tokens, see `Combinator.init`.
    remat: what a layer keeps for the reverse pass. `none`: all; `full`: its inputs; `dots`: its
      inputs and the results of its matrix products with parameters.
    unroll: a Python loop over layers instead of a scan; for tests and very few layers.

  Returns:
    The combinator's final read [B, T, D].

  Raises:
    ValueError: `layers` has another number of layers than the combinator, remat is unknown, or
      the combinator cannot be scanned.
  """
  if remat not in REMAT:
    raise ValueError(f"config.model.remat={remat!r} is not known; allowed: {', '.join(REMAT)}")
  if combinator.strategy == "loop" and not unroll:
    raise ValueError(
      "the layers of this combinator differ in shape and cannot be scanned; "
      "set config.model.depth='loop'"
    )
  graphdef, rows, shared = nnx.split(
    combinator, lambda path, _: path[0] in combinator.per_layer, ...
  )
  stack = _Stack(layers, rows)
  for leaf in jax.tree.leaves(stack):
    if leaf.shape[0] != combinator.num_layers:
      raise ValueError(
        f"a stacked parameter has {leaf.shape[0]} layers, its combinator {combinator.num_layers}"
      )
  step = partial(_layer, graphdef, branch, remat)
  drive = _loop if unroll else _STRATEGIES[combinator.strategy]
  state = drive(
    combinator, step, combinator.init(x, tokens), shared, stack, lax.stop_gradient(context)
  )
  return combinator.final(state)


class _Stack(NamedTuple):
  """What differs from layer to layer; leading axis L, or none for one layer."""

  layers: PyTree
  rows: PyTree  # the combinator's `per_layer` parameters


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
  def layer(bank, position, running, shared, one, context):
    state = DepthState(Sources((), bank, position.num_valid), running)
    state = step(position.index, state, shared, one, context)
    closed = combinator.close_block(state)
    ends = partial(jnp.where, position.ends_block)
    return closed.sources.recent, jax.tree.map(ends, closed.running, state.running)

  every = combinator.layers_per_block
  bank, num_valid, running = append_scan(
    layer, every, state.sources.recent, state.running, shared, stack, context
  )
  return DepthState(Sources((), bank, num_valid), running)


_STRATEGIES = {"carry": _carry, "depth_blocks": _append, "history": _append}
