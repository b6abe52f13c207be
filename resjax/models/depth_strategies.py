"""What a scan over layers does with the depth state: three strategies, and one plain loop.

carry         `lax.scan`; the state has a fixed shape and is kept once per layer.
history       the state is a growing list of sources: `block_loop`, with a bank of sources to
              which every layer appends.
depth_blocks  the same, where only the last layer of a depth block appends; what the layers
              of a block carry among them is kept once per layer, like a `carry`.

Each is called as strategy(combinator, layer, state, shared, stack, context), with
layer(index, state, shared, row of the stack, context) for one layer, and returns the depth state
after the last layer and what the layers gave besides, with a leading axis L.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from resjax.combinators.base import Combinator
from resjax.models.block_loop import block_loop
from resjax.models.layer_stack import LayerStep, Stack
from resjax.typing import Array, PyTree


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


STRATEGIES: dict[str, Callable[..., tuple[PyTree, PyTree]]] = {
  "carry": _carry,
  "depth_blocks": block_loop,
  "history": block_loop,
}
