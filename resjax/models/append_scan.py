"""A scan over layers that appends to a bank of sources, in memory linear in its steps.

A reverse pass keeps what every step saw. A bank in the carry of a `lax.scan` would be kept once per
step, O(steps²) memory, recomputation or not. Here the final bank alone is kept: every step reads
its valid part, and what lies behind is not looked at.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.kernels.depth_attention import make_bank, store
from resjax.typing import Array, PyTree


def append_scan(
  step: Callable[..., tuple[Array, tuple[Array, ...], PyTree, PyTree]],
  every: int,
  sources: tuple[Array, ...],
  running: PyTree,
  shared: PyTree,
  xs: PyTree,
  context: PyTree,
) -> tuple[Array, int, PyTree, PyTree]:
  """A scan that appends sources to a bank after every `every` steps, and after the last one.

  step(bank, position, running, shared, x, context) returns (bank, sources, running, out), the bank
  as it was, and may read bank[:position.num_valid] alone; the sources of steps that end no block
  are dropped. A step that returns the bank of its last reader (`return_sources` of depth
  attention) adds to one cotangent of the bank in place. In reverse mode one bank is kept, and for
  each step what the step keeps besides the bank, `shared` and `x`. No gradient flows through `out`.

  Args:
    step: pure; closes over no array.
    every: steps per block.
    sources: the first sources, each [B, T, D].
    running: pytree of arrays carried from step to step.
    shared: pytree of arrays that all steps read.
    xs: pytree of arrays with a leading axis, one row per step.
    context: pytree of arrays without gradient.

  Returns:
    The bank [N, B, T, D], all of it valid; N; `running` after the last step; and the stacked `out`
    of all steps.
  """
  first = jax.tree.map(lambda leaf: leaf[0], xs)
  small = make_bank(sources, len(sources)), Position(0, len(sources), False)
  _, appended, _, _ = jax.eval_shape(step, *small, running, shared, first, context)
  steps = jax.tree.leaves(xs)[0].shape[0]
  sizes = _Sizes(len(sources), len(appended), every, steps)
  bank, running, outs = _append_scan(step, sizes, sources, running, shared, xs, context)
  return bank, sizes.bank, running, outs


class Position(NamedTuple):
  """Where a step of `append_scan` stands.

  Attributes:
    index: of the step.
    num_valid: number of sources that it may read; its block appends to the slot of that number.
    ends_block: whether it is the last step of its block.
  """

  index: Array
  num_valid: Array
  ends_block: Array


class _Sizes(NamedTuple):
  """Numbers of sources at the start and appended by a block; steps per block and in all."""

  start: int
  appended: int
  every: int
  steps: int

  @property
  def bank(self) -> int:
    """Number of sources at the end."""
    return self.start + -(-self.steps // self.every) * self.appended

  def at(self, i: Array) -> Position:
    """Returns the position of step i."""
    ends = (i == self.steps - 1) | ((i + 1) % self.every == 0)
    return Position(i, self.start + i // self.every * self.appended, ends)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _append_scan(step, sizes: _Sizes, sources, running, shared, xs, context):
  def body(carry, indexed):
    bank, running = carry
    i, x = indexed
    position = sizes.at(i)
    bank, appended, running, out = step(bank, position, running, shared, x, context)
    # Before the block ends these slots are not valid, and are written again.
    return (store(bank, position.num_valid, appended), running), out

  start = make_bank(sources, sizes.bank), running
  (bank, running), outs = lax.scan(body, start, (jnp.arange(sizes.steps), xs))
  return bank, running, outs


def _append_scan_forward(step, sizes: _Sizes, sources, running, shared, xs, context):
  def body(carry, indexed):
    bank, running = carry
    i, x = indexed
    position = sizes.at(i)

    def differentiable(bank, running, shared, x):
      bank, appended, running, out = step(bank, position, running, shared, x, context)
      return (bank, appended, running), out

    arguments = bank, running, shared, x
    (bank, appended, running), vjp, out = jax.vjp(differentiable, *arguments, has_aux=True)
    # What the reverse pass can hand in again is not kept once per step.
    vjp.args_res[0] = vjp.args_res[2] = vjp.args_res[3] = None
    return (store(bank, position.num_valid, appended), running), (vjp, out)

  start = make_bank(sources, sizes.bank), running
  (bank, running), (vjps, outs) = lax.scan(body, start, (jnp.arange(sizes.steps), xs))
  return (bank, running, outs), (vjps, bank, shared, xs)


def _append_scan_backward(step, sizes: _Sizes, residuals, cotangents):
  vjps, bank, shared, xs = residuals
  d_bank, d_running, _ = cotangents

  def body(carry, indexed):
    d_bank, d_running, d_shared = carry
    i, vjp, x = indexed
    vjp.args_res[0], vjp.args_res[2], vjp.args_res[3] = bank, shared, x
    position = sizes.at(i)
    slots = [position.num_valid + k for k in range(sizes.appended)]
    d_slots = [lax.dynamic_index_in_dim(d_bank, slot, keepdims=False) for slot in slots]
    d_appended = tuple(jnp.where(position.ends_block, d_slot, 0) for d_slot in d_slots)
    # Slots that the step could not read keep what later steps left there; no step reads it.
    d_bank, d_running, d_shared_step, d_x = vjp((d_bank, d_appended, d_running))
    d_shared = jax.tree.map(jnp.add, d_shared, d_shared_step)
    return (d_bank, d_running, d_shared), d_x

  start = d_bank, d_running, jax.tree.map(jnp.zeros_like, shared)
  steps = jnp.arange(sizes.steps), vjps, xs
  (d_bank, d_running, d_shared), d_xs = lax.scan(body, start, steps, reverse=True)
  return tuple(d_bank[: sizes.start]), d_running, d_shared, d_xs, None


_append_scan.defvjp(_append_scan_forward, _append_scan_backward)
