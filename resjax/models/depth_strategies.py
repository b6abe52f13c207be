"""What a scan over layers does with the depth state: three strategies, and one plain loop.

carry         lax.scan; the state has a fixed shape and is kept once per layer.
history       the state is a growing list of sources: `append_scan`, with a bank of sources to
              which every layer appends.
depth_blocks  the same, where only the last layer of a depth block appends; what the layers
              of a block carry among them is kept once per layer, like a `carry`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.combinators.base import Combinator, DepthState, Views
from resjax.kernels.depth_attention import Sources
from resjax.models.append_scan import Steps, append_scan
from resjax.nn.linear import PRODUCT
from resjax.typing import Array, PyTree

_POLICIES = {
  "full": jax.checkpoint_policies.nothing_saveable,
  "dots": jax.checkpoint_policies.save_only_these_names(PRODUCT),
}
REMAT = ("none", *_POLICIES)


class Visit(NamedTuple):
  """What came and went at a site.

  Attributes:
    combinator: for this layer.
    layer: 0..L-1; may be traced.
    site: its name.
    before: the depth state that the site read.
    views: what it read.
    out: the output of its branch [B, T, D].
    after: the depth state with it.
    kept: what else the branch returned.
  """

  combinator: Combinator
  layer: int | Array
  site: str
  before: PyTree
  views: Views
  out: Array
  after: PyTree
  kept: PyTree

  def closed(self) -> Array:
    """Returns the output [B, T, D] that the layers would have if they ended after the site."""
    return self.combinator.final_after(self.after, self.layer, self.site)

  def depth_weights(self) -> Array | None:
    """Returns `Combinator.depth_weights` of the read."""
    return self.combinator.depth_weights(self.before, self.layer, self.site)


def drive(combinator, layers, x, branch, collect, context, *, tokens, remat, unroll):
  """Returns the depth state after the last layer, and what `collect` made of each layer.

  Args:
    combinator: see `resjax.models.depth.run`, as are layers, x, context, tokens, remat and unroll.
    layers: [L, ...].
    x: [B, T, D].
    branch: see `resjax.models.depth.run_keeping`.
    collect: collect(visits, context) gets the visits to the sites of a layer, in order, and returns
      a pytree of arrays, which is stacked over layers.
    context: arrays that `branch` and `collect` may read.
    tokens: for combinators that mix tokens.
    remat: one of `REMAT`.
    unroll: a Python loop.

  Raises:
    ValueError: see `resjax.models.depth.run`.
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
  step = partial(_layer, graphdef, branch, collect, remat)
  strategy = _loop if unroll else _STRATEGIES[combinator.strategy]
  return strategy(combinator, step, combinator.init(x, tokens), shared, stack, context)


class _Stack(NamedTuple):
  """What differs from layer to layer; leading axis L, or none for one layer."""

  layers: PyTree
  rows: PyTree  # the combinator's `per_layer` parameters


def visit(combinator, branch, layer, state, index, site, context) -> Visit:
  """Runs read, branch and write of a site."""
  views, tape = combinator.read(state, index, site)
  normed, out, kept = branch(layer, site, views, context)
  after = combinator.write(state, index, site, out, normed=normed, tape=tape)
  return Visit(combinator, index, site, state, views, out, after, kept)


def _layer(graphdef, branch, collect, remat, index, state, shared, one: _Stack, context):
  """Returns the depth state after layer `index`, and what `collect` makes of its visits."""

  def sublayers(state, shared, one, context):
    combinator = nnx.merge(graphdef, jax.tree.map(lambda row: row[None], one.rows), shared)
    visits = []
    for site in combinator.sites:
      visits.append(visit(combinator, branch, one.layers, state, index, site, context))
      state = visits[-1].after
    return state, collect(visits, context)

  if remat != "none":
    sublayers = jax.checkpoint(sublayers, policy=_POLICIES[remat], prevent_cse=False)
  return sublayers(state, shared, one, context)


def _loop(combinator, step, state, shared, stack: _Stack, context):
  kept = []
  for index in range(combinator.num_layers):
    one = jax.tree.map(lambda leaf, i=index: leaf[i], stack)
    state, kept_here = step(index, state, shared, one, context)
    kept.append(kept_here)
  return state, jax.tree.map(lambda *rows: jnp.stack(rows), *kept)


def _carry(combinator, step, state, shared, stack: _Stack, context):
  def body(state, indexed):
    index, one = indexed
    return step(index, state, shared, one, context)

  return lax.scan(body, state, (jnp.arange(combinator.num_layers), stack))


def _append(combinator, step, state: DepthState, shared, stack: _Stack, context):
  def open_block(bank, num_valid, shared, rows):
    block = nnx.merge(combinator_graph, rows, shared[0])
    sources, opened = block.open_block(Sources((), bank, num_valid))
    return sources.bank, opened

  def layer(bank, opened, position, running, shared, one, constant):
    shared, smooth = shared
    state = DepthState(Sources((), bank, position.num_valid), running, opened)
    state, kept = step(position.index, state, shared, one, _merged(smooth, constant))
    closed = combinator.close_block(state)
    ends = partial(jnp.where, position.ends_block)
    running = jax.tree.map(ends, closed.running, state.running)
    return state.sources.bank, state.opened, closed.sources.recent, running, kept

  smooth, constant = _by_type(context)
  combinator_graph = nnx.graphdef(combinator)
  bank, num_valid, running, kept = append_scan(
    Steps(layer, open_block, combinator.layers_per_block),
    state.sources.recent,
    state.running,
    (shared, smooth),
    stack,
    stack.rows,
    constant,
  )
  return DepthState(Sources((), bank, num_valid), running), kept


def _by_type(context: PyTree) -> tuple[PyTree, PyTree]:
  """Splits arrays that have gradients from those that do not; None where the other has one."""
  floating = jax.tree.map(lambda a: jnp.issubdtype(jnp.result_type(a), jnp.inexact), context)
  smooth = jax.tree.map(lambda a, f: a if f else None, context, floating)
  return smooth, jax.tree.map(lambda a, f: None if f else a, context, floating)


def _merged(smooth: PyTree, constant: PyTree) -> PyTree:
  """The inverse of `_by_type`."""

  def either(a, b):
    return b if a is None else a

  return jax.tree.map(either, smooth, constant, is_leaf=lambda a: a is None)


_STRATEGIES = {"carry": _carry, "depth_blocks": _append, "history": _append}
