"""What a scan over layers does with the depth state: three strategies, and one plain loop.

carry         `lax.scan`; the state has a fixed shape and is kept once per layer.
history       the state is a growing list of sources: `block_loop`, with a bank of sources to
              which every layer appends.
depth_blocks  the same, where only the last layer of a depth block appends; what the layers
              of a block carry among them is kept once per layer, like a `carry`.

Each is called as strategy(combinator, layer, shared, stack, carried, context), with
layer(index, carried, shared, row of the stack, context) for one layer, and returns what the last
layer leaves and what the layers gave besides, with a leading axis L. What layers hand on besides
the depth state (`resjax.models.depth.Relay`) is kept once per layer.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array, PyTree
from resjax.combinators import Combinator
from resjax.models.block_loop import block_loop
from resjax.models.layer_stack import Carried, LayerStep, Stack


def loop(
  combinator: Combinator, layer: LayerStep, shared: PyTree, stack: Stack,
  carried: Carried, context: PyTree,
) -> tuple[Carried, PyTree]:  # fmt: skip
  """Runs the layers one after another in Python, for any combinator."""
  found = []
  for index in range(combinator.num_layers):
    row = jax.tree.map(lambda leaf, i=index: leaf[i], stack)
    carried, of_layer = layer(index, carried, shared, row, context)
    found.append(of_layer)
  return carried, jax.tree.map(lambda *rows: jnp.stack(rows), *found)


def _carry(
  combinator: Combinator, layer: LayerStep, shared: PyTree, stack: Stack,
  carried: Carried, context: PyTree,
) -> tuple[Carried, PyTree]:  # fmt: skip
  """Runs the layers in a scan that carries the state."""

  def body(carried: Carried, indexed: tuple[Array, Stack]) -> tuple[Carried, PyTree]:
    index, row = indexed
    return layer(index, carried, shared, row, context)

  return lax.scan(body, carried, (jnp.arange(combinator.num_layers), stack))


STRATEGIES: dict[str, Callable[..., tuple[Carried, PyTree]]] = {
  "carry": _carry,
  "depth_blocks": block_loop,
  "history": block_loop,
}
