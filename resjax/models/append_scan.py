"""A scan over layers that appends to a bank of sources, in memory linear in its steps.

A reverse pass needs what every step saw. If the bank were in the carry of a `lax.scan`, it would be
kept once per step, which is O(steps²) memory, with recomputation or without. Here only the final
bank is kept: a step reads the part of it that was valid for it, and ignores the rest.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.kernels.depth_attention import make_bank, store
from resjax.typing import Array, PyTree


class Steps(NamedTuple):
  """What a scan runs: pure functions that close over no array.

  Attributes:
    step: step(position, context, bank, opened, running, shared, x) returns
      ((bank, opened, sources, running), out), with bank and opened as they were. It may read
      bank[:position.num_valid] alone; the sources of steps that end no block are dropped.
    open_block: open_block(bank, num_valid, shared, rows) returns (bank, opened), where `opened` is
      what the steps of a block together make of the sources that are complete before it, or None;
      `rows` are the rows of these steps.
    every: the number of steps in a block.
  """

  step: Callable[..., tuple[tuple[Array, PyTree, tuple[Array, ...], PyTree], PyTree]]
  open_block: Callable[..., tuple[Array, PyTree]]
  every: int


def append_scan(
  steps: Steps,
  sources: tuple[Array, ...],
  running: PyTree,
  shared: PyTree,
  xs: PyTree,
  rows: PyTree,
  context: PyTree,
) -> tuple[Array, int, PyTree, PyTree]:
  """Runs a scan that appends sources to a bank after every block of steps, and after the last step.

  For the reverse pass it keeps one bank, and of each step what the step keeps besides the bank,
  `opened`, `shared` and `x`; blocks are opened again. A step that returns the bank of its last
  reader (`return_sources` of depth attention) adds to one cotangent of the bank in place. The
  cotangent of `opened` is handed from step to step and never zeroed: of each leaf [S, ...] a step
  uses rows of its own, and writes theirs (`depth_attention_merge`). No gradient flows through
  `out`.

  Args:
    steps: what to run.
    sources: the first sources, each [B, T, D].
    running: a pytree of arrays that is carried from step to step.
    shared: a pytree of arrays that all steps read.
    xs: a pytree of arrays whose leading axis has one row per step.
    rows: the same for `open_block`; a last block that is shorter gets the last row repeatedly.
    context: a pytree of arrays without gradient.

  Returns:
    The bank [N, B, T, D], all of it valid; N; `running` after the last step; and the stacked `out`
    of all steps.
  """
  first = jax.tree.map(lambda leaf: leaf[0], xs)
  bank = make_bank(sources, len(sources))
  sizes = _Sizes(len(sources), 0, steps.every, jax.tree.leaves(xs)[0].shape[0])
  opened = _nothing(steps, sizes, bank, shared, rows)
  (_, _, appended, _), _ = jax.eval_shape(
    steps.step, sizes.at(0), context, bank, opened, running, shared, first
  )
  sizes = sizes._replace(appended=len(appended))
  bank, running, outs = _append_scan(steps, sizes, sources, running, shared, xs, rows, context)
  return bank, sizes.bank, running, outs


class Position(NamedTuple):
  """Where a step of `append_scan` stands.

  Attributes:
    step: the number of the step.
    num_valid: how many sources the step may read; its block appends to the slot of that number.
    starts_block: whether the step is the first one of its block.
    ends_block: whether the step is the last one of its block.
  """

  step: Array | int
  num_valid: Array | int
  starts_block: Array | bool
  ends_block: Array | bool


class _Sizes(NamedTuple):
  """The sizes of a scan."""

  start: int  # number of the first sources
  appended: int  # number of sources that a block appends
  every: int  # steps in a block
  steps: int  # steps in all

  @property
  def bank(self) -> int:
    """The number of sources at the end, N."""
    return self.start + -(-self.steps // self.every) * self.appended

  def at(self, i: Array | int) -> Position:
    """Returns the position of step i."""
    num_valid = self.start + i // self.every * self.appended
    ends = (i == self.steps - 1) | ((i + 1) % self.every == 0)
    return Position(i, num_valid, i % self.every == 0, ends)

  def rows_of_block(self, rows: PyTree, i: Array | int) -> PyTree:
    """Returns the rows of the steps of the block of step i."""
    block = i // self.every * self.every + jnp.arange(self.every)
    return jax.tree.map(lambda leaf: leaf[jnp.minimum(block, self.steps - 1)], rows)


def _open(
  steps: Steps, sizes: _Sizes, position: Position, bank: Array, shared: PyTree, rows: PyTree
) -> tuple[Array, PyTree]:
  """Opens the block of a step: returns (bank, opened)."""
  block = sizes.rows_of_block(rows, position.step)
  return steps.open_block(bank, position.num_valid, shared, block)


def _nothing(steps: Steps, sizes: _Sizes, bank: Array, shared: PyTree, rows: PyTree) -> PyTree:
  """Returns zeros in the shape of what opening a block gives."""
  opening = partial(_open, steps, sizes, sizes.at(0))
  _, opened = jax.eval_shape(opening, bank, shared, rows)
  return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), opened)


def _reopened(
  steps: Steps,
  sizes: _Sizes,
  position: Position,
  when: Array | bool,
  opened: PyTree,
  *arrays: PyTree,
) -> PyTree:
  """Returns what opening the block of a step gives where `when` is true, else `opened`."""
  if not jax.tree.leaves(opened):
    return opened
  opening = partial(_open, steps, sizes, position)
  return lax.cond(when, lambda: opening(*arrays)[1], lambda: opened)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _append_scan(
  steps: Steps,
  sizes: _Sizes,
  sources: tuple[Array, ...],
  running: PyTree,
  shared: PyTree,
  xs: PyTree,
  rows: PyTree,
  context: PyTree,
) -> tuple[Array, PyTree, PyTree]:
  """Returns the bank, `running` after the last step, and the stacked `out` of all steps."""

  def body(carry: PyTree, indexed: tuple[Array, PyTree]) -> tuple[PyTree, PyTree]:
    bank, opened, running = carry
    i, x = indexed
    position = sizes.at(i)
    opened = _reopened(steps, sizes, position, position.starts_block, opened, bank, shared, rows)
    outputs, out = steps.step(position, context, bank, opened, running, shared, x)
    bank, opened, appended, running = outputs
    # Before the block ends these slots are not valid, and are written again.
    return (store(bank, position.num_valid, appended), opened, running), out

  bank = make_bank(sources, sizes.bank)
  start = bank, _nothing(steps, sizes, bank, shared, rows), running
  (bank, _, running), outs = lax.scan(body, start, (jnp.arange(sizes.steps), xs))
  return bank, running, outs


def _append_scan_forward(
  steps: Steps,
  sizes: _Sizes,
  sources: tuple[Array, ...],
  running: PyTree,
  shared: PyTree,
  xs: PyTree,
  rows: PyTree,
  context: PyTree,
) -> tuple[tuple[Array, PyTree, PyTree], PyTree]:
  def body(carry: PyTree, indexed: tuple[Array, PyTree]) -> tuple[PyTree, PyTree]:
    bank, opened, running = carry
    i, x = indexed
    position = sizes.at(i)
    opened = _reopened(steps, sizes, position, position.starts_block, opened, bank, shared, rows)
    arguments = bank, opened, running, shared, x
    vjp: Any
    outputs, vjp, out = jax.vjp(partial(steps.step, position, context), *arguments, has_aux=True)
    bank, opened, appended, running = outputs
    # The reverse pass hands these arguments in again, so they are not kept once per step.
    for index in (0, 1, 3, 4):
      vjp.args_res[index] = None
    return (store(bank, position.num_valid, appended), opened, running), (vjp, out)

  bank = make_bank(sources, sizes.bank)
  start = bank, _nothing(steps, sizes, bank, shared, rows), running
  (bank, _, running), (vjps, outs) = lax.scan(body, start, (jnp.arange(sizes.steps), xs))
  return (bank, running, outs), (vjps, bank, shared, xs, rows)


def _append_scan_backward(
  steps: Steps,
  sizes: _Sizes,
  residuals: PyTree,
  cotangents: tuple[Array, PyTree, PyTree],
) -> tuple[tuple[Array, ...], PyTree, PyTree, PyTree, PyTree, None]:
  vjps, bank, shared, xs, rows = residuals
  d_bank, d_running, _ = cotangents

  def body(carry: PyTree, indexed: tuple[Array, Any, PyTree]) -> tuple[PyTree, PyTree]:
    opened, d_bank, d_opened, d_running, d_shared, d_rows = carry
    i, vjp, x = indexed
    position = sizes.at(i)
    opened = _reopened(steps, sizes, position, position.ends_block, opened, bank, shared, rows)
    vjp.args_res[0], vjp.args_res[1], vjp.args_res[3], vjp.args_res[4] = bank, opened, shared, x
    slots = [position.num_valid + k for k in range(sizes.appended)]
    d_slots = [lax.dynamic_index_in_dim(d_bank, slot, keepdims=False) for slot in slots]
    d_appended = tuple(jnp.where(position.ends_block, d_slot, 0) for d_slot in d_slots)
    # The cotangents of slots that the step could not read stay as later steps left them; the steps
    # before do not read them.
    d_bank, d_opened, d_running, d_shared_step, d_x = vjp((d_bank, d_opened, d_appended, d_running))
    d_shared = jax.tree.map(jnp.add, d_shared, d_shared_step)
    d_bank, d_shared, d_rows = closed(position, d_opened, d_bank, d_shared, d_rows)
    return (opened, d_bank, d_opened, d_running, d_shared, d_rows), d_x

  def closed(position: Position, d_opened: PyTree, *collected: PyTree) -> tuple[PyTree, ...]:
    """Adds the cotangents of what opened the block of a step, if the step is its first one."""

    def close() -> tuple[PyTree, ...]:
      d_bank, d_shared, d_rows = collected
      _, vjp = jax.vjp(partial(_open, steps, sizes, position), bank, shared, rows)
      d_bank, *others = vjp((d_bank, d_opened))
      return d_bank, *jax.tree.map(jnp.add, [d_shared, d_rows], others)

    if not jax.tree.leaves(d_opened):
      return collected
    return lax.cond(position.starts_block, close, lambda: collected)

  opened = _nothing(steps, sizes, bank, shared, rows)
  d_shared, d_rows = jax.tree.map(jnp.zeros_like, (shared, rows))
  start = opened, d_bank, jax.tree.map(jnp.zeros_like, opened), d_running, d_shared, d_rows
  indexed = jnp.arange(sizes.steps), vjps, xs
  (_, d_bank, _, d_running, d_shared, d_rows), d_xs = lax.scan(body, start, indexed, reverse=True)
  return tuple(d_bank[: sizes.start]), d_running, d_shared, d_xs, d_rows, None


_append_scan.defvjp(_append_scan_forward, _append_scan_backward)
