"""What a scan over layers does with the depth state: three strategies, and one plain loop.

carry         `lax.scan`; the state has a fixed shape and is kept once per layer.
history       the state is a growing list of sources: `append_scan`, with a bank of sources to
              which every layer appends.
depth_blocks  the same, where only the last layer of a depth block appends; what the layers
              of a block carry among them is kept once per layer, like a `carry`.

Each is called as strategy(combinator, layer, state, shared, stack, context), with
layer(index, state, shared, row of the stack, context) for one layer, and returns the depth state
after the last layer and what the layers gave besides, with a leading axis L.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.combinators.base import Combinator
from resjax.combinators.source import DepthState, SourceCombinator
from resjax.kernels.depth_attention import Sources
from resjax.models.append_scan import Position, Steps, append_scan
from resjax.typing import Array, PyTree

LayerStep = Callable[..., tuple[Any, PyTree]]


class Stack(NamedTuple):
  """What differs from layer to layer: arrays with a leading axis L, or one layer's row of them.

  Attributes:
    layers: the parameters of the layers.
    combinator: the combinator's `per_layer` parameters.
  """

  layers: PyTree
  combinator: PyTree


def loop(
  combinator: Combinator, layer: LayerStep, state: PyTree,
  shared: PyTree, stack: Stack, context: PyTree,
) -> tuple[PyTree, PyTree]:  # fmt: skip
  """Runs the layers one after another in Python, for any combinator."""
  found = []
  for index in range(combinator.num_layers):
    row = jax.tree.map(lambda leaf, i=index: leaf[i], stack)
    state, of_layer = layer(index, state, shared, row, context)
    found.append(of_layer)
  return state, jax.tree.map(lambda *rows: jnp.stack(rows), *found)


def _carry(
  combinator: Combinator, layer: LayerStep, state: PyTree,
  shared: PyTree, stack: Stack, context: PyTree,
) -> tuple[PyTree, PyTree]:  # fmt: skip
  """Runs the layers in a scan that carries the state."""

  def body(state: PyTree, indexed: tuple[Array, Stack]) -> tuple[PyTree, PyTree]:
    index, row = indexed
    return layer(index, state, shared, row, context)

  return lax.scan(body, state, (jnp.arange(combinator.num_layers), stack))


def _append(
  combinator: SourceCombinator, layer: LayerStep, state: DepthState,
  shared: PyTree, stack: Stack, context: PyTree,
) -> tuple[DepthState, PyTree]:  # fmt: skip
  """Runs the layers in a scan that appends the sources of the state to a bank."""

  def open_block(
    bank: Array, num_valid: int | Array, shared: tuple[PyTree, PyTree], rows: PyTree
  ) -> tuple[Array, PyTree]:
    block = nnx.merge(combinator_graph, rows, shared[0])
    sources, opened = block.open_block(Sources((), bank, num_valid))
    return sources.bank, opened

  def step(
    position: Position,
    constant: PyTree,
    bank: Array,
    opened: PyTree,
    running: PyTree,
    shared: tuple[PyTree, PyTree],
    row: Stack,
  ) -> tuple[tuple[Array, PyTree, tuple[Array, ...], PyTree], PyTree]:
    parameters, smooth = shared
    state = DepthState(Sources((), bank, position.num_valid), running, opened)
    state, found = layer(position.step, state, parameters, row, _merged(smooth, constant))
    closed = combinator.close_block(state)
    ends = partial(jnp.where, position.ends_block)
    running = jax.tree.map(ends, closed.running, state.running)
    return (state.sources.bank, state.opened, closed.sources.recent, running), found

  smooth, constant = _by_type(context)
  combinator_graph = nnx.graphdef(combinator)
  bank, num_valid, running, found = append_scan(
    Steps(step, open_block, combinator.layers_per_block),
    state.sources.recent,
    state.running,
    (shared, smooth),
    stack,
    stack.combinator,
    constant,
  )
  return DepthState(Sources((), bank, num_valid), running), found


def _by_type(context: PyTree) -> tuple[PyTree, PyTree]:
  """Splits arrays that have gradients from those that do not; None where the other has one."""
  floating = jax.tree.map(lambda a: jnp.issubdtype(jnp.result_type(a), jnp.inexact), context)
  smooth = jax.tree.map(lambda a, f: a if f else None, context, floating)
  return smooth, jax.tree.map(lambda a, f: None if f else a, context, floating)


def _merged(smooth: PyTree, constant: PyTree) -> PyTree:
  """Returns what `_by_type` split."""

  def either(a: Array | None, b: Array | None) -> Array | None:
    return b if a is None else a

  return jax.tree.map(either, smooth, constant, is_leaf=lambda a: a is None)


STRATEGIES: dict[str, Callable[..., tuple[PyTree, PyTree]]] = {
  "carry": _carry,
  "depth_blocks": _append,
  "history": _append,
}
