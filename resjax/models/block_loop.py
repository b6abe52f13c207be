"""Two nested loops, over depth blocks and over the layers of each, that append sources to a bank.

A reverse pass needs what every layer saw. If the bank were in the carry of a `lax.scan`, it would
be kept once per layer, which is O(L²) memory, with recomputation or without. Here only the final
bank is kept: a layer reads the part of it that was valid for it, and ignores the rest.

What differs from layer to layer, weights included, is indexed by the number of the layer inside the
inner loop, and what the layers leave behind is written to stacks that both loops carry: as inputs
and outputs of nested scans each of them would be copied once more.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree
from resjax.base.sharding import laid_out, typed_like
from resjax.combinators import DepthState, SourceCombinator
from resjax.kernels.depth_attention import Sources, make_bank, store
from resjax.models.layer_stack import Carried, LayerStep, Stack


def block_loop(
  combinator: SourceCombinator, layer: LayerStep, shared: PyTree, stack: Stack,
  carried: Carried, context: PyTree,
) -> tuple[Carried, PyTree]:  # fmt: skip
  """Runs the layers, and appends sources to a bank after every depth block.

  For the reverse pass it keeps one bank, and of each layer what the layer keeps besides the bank,
  what opened its block, and parameters; blocks are opened once more. A layer that returns the bank
  of its last reader (`return_sources` of the kernel) adds to one cotangent of the bank in
  place. The cotangent of what opened a block is handed from layer to layer and from block to block
  and never zeroed: of each leaf [S, ...] a site uses a row of its own, and writes that
  (`depth_attention_merge`). No gradient flows through what the layers give besides the state.

  See `resjax.models.depth` for arguments and results.
  """
  smooth, constant = _by_type(context)
  state: DepthState = carried.state
  running = _Running(state.running, carried.handed)
  sizes = _Sizes(
    len(state.sources.recent), 0, 0, combinator.layers_per_block, combinator.num_layers
  )
  loops = _Loops(nnx.graphdef(combinator), combinator.close_block, False, layer, sizes)
  arrays = _Arrays((shared, smooth), stack, constant)
  bank = make_bank(state.sources.recent, sizes.start)
  of_block = jax.eval_shape(loops.sources_of_block, bank, running, arrays)
  sizes = sizes._replace(recent=len(of_block[0]), appended=len(of_block[1]))
  loops = loops._replace(sizes=sizes)
  opens = (partial(_opened, loops, segment, bank, arrays) for segment in sizes.segments())
  found = [jax.eval_shape(one, jnp.int32(0))[0] for one in opens]  # blocks of one read may not
  loops = loops._replace(opens=bool(jax.tree.leaves(found)))
  bank, running, found = _run(loops, state.sources.recent, running, arrays)
  state = DepthState(Sources((), bank, sizes.bank), running.state)
  return Carried(state, running.handed), found


class _Running(NamedTuple):
  """What changes from layer to layer and is kept once per layer."""

  state: PyTree  # `DepthState.running`
  handed: PyTree  # `Carried.handed`


class _Segment(NamedTuple):
  """Consecutive blocks of one length."""

  first_block: int
  num_blocks: int
  first_layer: int
  length: int  # layers in a block

  @property
  def num_layers(self) -> int:
    return self.num_blocks * self.length

  def first_of(self, block: Array) -> Array:
    """Returns the first layer of a block, counted from the first block of the segment."""
    return jnp.int32(self.first_layer + block * self.length)


class _Sizes(NamedTuple):
  """The sizes of the loops."""

  start: int  # number of the first sources
  recent: int  # sources that the last layer of a block leaves
  appended: int  # number of sources that a block appends
  every: int  # layers in a block
  num_layers: int  # layers in all

  @property
  def bank(self) -> int:
    """The number of sources at the end, N."""
    return self.start + -(-self.num_layers // self.every) * self.appended

  def segments(self) -> Iterator[_Segment]:
    """Yields the blocks of full length, then the shorter last one, where they exist."""
    whole, rest = divmod(self.num_layers, self.every)
    if whole:
      yield _Segment(0, whole, 0, self.every)
    if rest:
      yield _Segment(whole, 1, whole * self.every, rest)

  def num_valid(self, block: Array) -> Array:
    """Returns the number of sources that are complete when a block begins."""
    return jnp.int32(self.start + block * self.appended)


class _Arrays(NamedTuple):
  """What all layers read, or one row of it each."""

  shared: PyTree  # parameters of the combinator; context with gradients
  stack: Stack
  constant: PyTree  # context without gradients


class _Loops(NamedTuple):
  """What the loops run: pure functions, whose arrays are arguments."""

  graphdef: nnx.GraphDef
  close: Callable[[DepthState], DepthState]  # `SourceCombinator.close_block`
  opens: bool  # whether all layers of a block share results of `open_block`
  layer: LayerStep
  sizes: _Sizes

  def open_block(
    self, num_valid: Array | int, bank: Array, shared: PyTree, rows: PyTree
  ) -> tuple[Array, PyTree]:
    """Returns the bank unchanged, and the results that all layers of a depth block share.

    They are `combinator.open_block` of the complete sources, the first `num_valid` of the bank.
    """
    combinator = nnx.merge(self.graphdef, rows, shared[0])
    with jax.named_scope("depth_mixing"):
      sources, opened = combinator.open_block(Sources((), bank, num_valid))
    return sources.bank, opened

  def step(
    self,
    index: Array,
    num_valid: Array | int,
    constant: PyTree,
    bank: Array,
    opened: PyTree,
    running: _Running,
    shared: PyTree,
    row: Stack,
  ) -> tuple[tuple[Array, PyTree, tuple[Array, ...], _Running], PyTree]:
    """Runs one layer on the depth state of a block.

    Returns the unchanged bank and `opened`, the sources that the layer appended, and `running`
    after it; and the layer's collected results.
    """
    parameters, smooth = shared
    carried = Carried(
      DepthState(Sources((), bank, num_valid), running.state, opened), running.handed
    )
    carried, found = self.layer(index, carried, parameters, row, _merged(smooth, constant))
    state, running = carried.state, _Running(carried.state.running, carried.handed)
    return (state.sources.bank, state.opened, state.sources.recent, running), found

  def close_block(
    self, recent: tuple[Array, ...], running: _Running
  ) -> tuple[tuple[Array, ...], _Running]:
    """Returns the sources that a block appends, and `running` for the next one."""
    with jax.named_scope("depth_mixing"):
      closed = self.close(DepthState(Sources(recent), running.state))
    return closed.sources.recent, running._replace(state=closed.running)

  def sources_of_block(
    self, bank: Array, running: _Running, arrays: _Arrays
  ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Returns the sources that a block of one layer leaves, and those that closing it appends."""
    rows, start = _rows(arrays.stack.combinator, 0, 1), self.sizes.start
    bank, opened = self.open_block(start, bank, arrays.shared, rows)
    step = partial(self.step, jnp.int32(0), start, arrays.constant, bank, opened, running)
    (_, _, recent, running), _ = step(arrays.shared, _row(arrays.stack, 0))
    return recent, self.close_block(recent, running)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
  loops: _Loops, sources: tuple[Array, ...], running: _Running, arrays: _Arrays
) -> tuple[Array, _Running, PyTree]:
  return _forward(False, loops, sources, running, arrays)[0]


def _forward(
  keeps: bool, loops: _Loops, sources: tuple[Array, ...], running: _Running, arrays: _Arrays
) -> tuple[tuple[Array, PyTree, PyTree], PyTree]:
  """Runs both loops; if `keeps`, also returns the residuals of every layer for the reverse pass."""
  bank, kept = make_bank(sources, loops.sizes.bank), []
  for segment in loops.sizes.segments():
    traces: list[tuple[Any, list[Any]]] = []
    run_block = partial(_run_block, keeps, loops, segment, arrays, traces)
    shapes = jax.eval_shape(run_block, jnp.int32(0), (bank, running, None))[2]
    stacks = [_empty(row, segment.num_layers) for row in shapes]
    bank, running, stacks = lax.fori_loop(0, segment.num_blocks, run_block, (bank, running, stacks))
    leaves = iter(stacks)
    whole = [next(leaves) if constant is None else constant for constant in traces[0][1]]
    kept.append(jax.tree.unflatten(traces[-1][0], whole))
  found = jax.tree.map(lambda *parts: jnp.concatenate(parts), *(found for _, found in kept))
  return (bank, running, found), ([vjp for vjp, _ in kept], bank, arrays)


def _run_block(
  keeps: bool,
  loops: _Loops,
  segment: _Segment,
  arrays: _Arrays,
  traces: list[tuple[Any, list[Any]]],
  block: Array,
  carry: PyTree,
) -> tuple[Array, PyTree, list[Array]]:
  """Runs the layers of one block.

  Args:
    keeps: whether the reverse of every layer is kept.
    loops: what to run.
    segment: the blocks to which this one belongs.
    arrays: what the layers read.
    traces: is filled, for every trace of a layer, with the pytree structure of its residuals and
      those of them that no loop changes, None for others; the stacks are the others of the first.
    block: the number of the block in its segment.
    carry: the bank, `running`, and the stacks; with None in place of these one layer is run.

  Returns:
    The next carry; without stacks the residuals of one layer in their place.
  """
  bank, running, stacks = carry
  num_valid, first = loops.sizes.num_valid(segment.first_block + block), segment.first_of(block)
  rows = _rows(arrays.stack.combinator, first, segment.length)
  bank, opened = loops.open_block(num_valid, bank, arrays.shared, rows)

  def run_layer(j: Array, carry: PyTree) -> PyTree:
    _, running, stacks = carry
    i = jnp.int32(first + j)
    step = partial(loops.step, i, num_valid, arrays.constant)
    arguments = bank, opened, running, arrays.shared, _row(arrays.stack, i)
    vjp: Any = None
    if keeps:
      (_, _, recent, running), vjp, found = jax.vjp(step, *arguments, has_aux=True)
      for index in (0, 1, 3, 4):  # the reverse pass hands these arguments in again
        vjp.args_res[index] = None
    else:
      (_, _, recent, running), found = step(*arguments)
    leaves, structure = jax.tree.flatten((vjp, found))
    traces.append((structure, _constants(vjp, found)))
    leaves = [leaf for leaf, same in zip(leaves, traces[0][1], strict=True) if same is None]
    if stacks is None:
      return recent, running, leaves
    new = [leaf[None] for leaf in leaves]
    return recent, running, _with_rows(stacks, new, i - segment.first_layer)

  carry = (), running, stacks
  if stacks is None or segment.length == 1:
    recent, running, stacks = run_layer(jnp.int32(0), carry)
  else:
    recent, running, stacks = lax.fori_loop(0, segment.length, run_layer, carry)
  appended, running = loops.close_block(recent, running)
  if len(appended) > 1:
    # A later site of the layer reads the bank as it was. Were an earlier output stored as soon as
    # it is there, all of the bank would have to be copied first.
    appended, running = lax.optimization_barrier((appended, running))
  return store(bank, num_valid, appended), running, stacks


@jax.tree_util.register_static
class _Constant:
  """A constant of the program, the same for all layers: no leaf, so that it is not stacked."""

  def __init__(self, value: Any):
    self.value = value


def _constants(vjp: Any, found: PyTree) -> list[Any]:
  """Returns the constants among the leaves of what is kept of a layer, None for others."""
  kept = jax.tree.leaves(vjp)
  constants = [None if isinstance(leaf, jax.core.Tracer) else _Constant(leaf) for leaf in kept]
  return constants + [None] * len(jax.tree.leaves(found))


def _with_constants(vjp: Any) -> Any:
  """Returns what is kept of a layer with the constants as leaves."""
  return jax.tree.map(
    lambda a: a.value if isinstance(a, _Constant) else a, vjp,
    is_leaf=lambda a: isinstance(a, _Constant),
  )  # fmt: skip


class _Collected(NamedTuple):
  """The cotangents that the reverse pass has summed or written so far.

  Attributes:
    bank: of the sources.
    running: of the running state, before the layers that are reversed already.
    shared: of the parameters that all layers share, summed.
    stack: of the rows that each layer has of its own, one row written per reversed layer. Arrays
      without a cotangent are None.
    rows: of the combinator's rows of `stack`, through `open_block`.
  """

  bank: Array
  running: PyTree
  shared: PyTree
  stack: PyTree
  rows: PyTree


def _backward(
  loops: _Loops, residuals: PyTree, cotangents: tuple[Array, PyTree, PyTree]
) -> tuple[tuple[Array, ...], PyTree, _Arrays]:
  vjps, bank, arrays = residuals
  d_bank, d_running, _ = cotangents
  d_stack = jax.tree.map(_empty_cotangent, arrays.stack)
  d_rows = jax.tree.map(
    lambda leaf: _empty_cotangent(leaf) if loops.opens else None, arrays.stack.combinator
  )
  d_shared = jax.tree.map(jnp.zeros_like, arrays.shared)
  d = _Collected(d_bank, d_running, d_shared, d_stack, d_rows)
  for segment, kept in reversed(list(zip(loops.sizes.segments(), vjps, strict=True))):
    reverse_block = partial(_reverse_block, loops, segment, kept, bank, arrays)
    opened = jax.eval_shape(partial(_opened, loops, segment, bank, arrays), jnp.int32(0))[0]
    d_opened = jax.tree.map(lambda a: typed_like(jnp.zeros(a.shape, a.dtype), a), opened)
    _, d = lax.fori_loop(0, segment.num_blocks, reverse_block, (d_opened, d))
  d_combinator = d.stack.combinator
  if loops.opens:
    d_combinator = jax.tree.map(jnp.add, d_combinator, d.rows)
  d_arrays = _Arrays(d.shared, Stack(d.stack.layers, d_combinator), None)
  return tuple(d.bank[: loops.sizes.start]), d.running, d_arrays


def _reverse_block(
  loops: _Loops,
  segment: _Segment,
  vjps: PyTree,
  bank: Array,
  arrays: _Arrays,
  k: Array,
  carry: tuple[PyTree, _Collected],
) -> tuple[PyTree, _Collected]:
  """Runs the reverse pass of one block.

  Args:
    loops: the loops of the forward pass.
    segment: the blocks to which this one belongs.
    vjps: the residuals of their layers, stacked.
    bank: the bank after the last block.
    arrays: what the layers read.
    k: the number of the block in its segment, counted from the last one.
    carry: the cotangents of the results of `open_block`, and all others, after later blocks.
  """
  block = segment.num_blocks - 1 - k
  first = segment.first_of(block)
  d_opened, d = carry
  opened, vjp_of_opening = _opened(loops, segment, bank, arrays, block)
  d_recent, d_running = _reverse_close(loops, segment.first_block + block, d)

  def reverse_layer(k: Array, carry: PyTree) -> PyTree:
    d_recent, d_opened, d = carry
    i = jnp.int32(first + segment.length - 1 - k)
    vjp = _with_constants(_row(vjps, i - segment.first_layer))
    vjp.args_res[0], vjp.args_res[1] = bank, opened
    vjp.args_res[3], vjp.args_res[4] = arrays.shared, _row(arrays.stack, i)
    # The cotangents of slots that the layer could not read stay as later layers left them; the
    # layers before do not read them.
    d_bank, d_opened, d_running, d_shared, d_row = vjp((d.bank, d_opened, d_recent, d.running))
    d_shared = jax.tree.map(jnp.add, d.shared, d_shared)
    d_stack = _with_rows(d.stack, jax.tree.map(lambda leaf: leaf[None], d_row), i)
    return (), d_opened, _Collected(d_bank, d_running, d_shared, d_stack, d.rows)

  inner: PyTree = d_recent, d_opened, d._replace(running=d_running)
  if segment.length == 1:
    inner = reverse_layer(jnp.int32(0), inner)
  else:
    inner = lax.fori_loop(0, segment.length, reverse_layer, inner)
  _, d_opened, d = inner
  d_bank, d_shared, d_rows = vjp_of_opening((d.bank, d_opened))
  d_shared = jax.tree.map(jnp.add, d.shared, d_shared)
  return d_opened, d._replace(bank=d_bank, shared=d_shared, rows=_with_rows(d.rows, d_rows, first))


def _opened(
  loops: _Loops, segment: _Segment, bank: Array, arrays: _Arrays, block: Array
) -> tuple[PyTree, Any]:
  """Returns what opens a block of a segment, and its vjp by bank, shared arrays and rows."""
  num_valid = loops.sizes.num_valid(segment.first_block + block)
  rows = _rows(arrays.stack.combinator, segment.first_of(block), segment.length)
  (_, opened), vjp = jax.vjp(partial(loops.open_block, num_valid), bank, arrays.shared, rows)
  return opened, vjp


def _reverse_close(loops: _Loops, block: Array, d: _Collected) -> tuple[tuple[Array, ...], PyTree]:
  """Returns the cotangents of a block's last recent sources, and of `running`, before its close."""
  sizes = loops.sizes
  d_appended = tuple(_row(d.bank, sizes.num_valid(block) + k) for k in range(sizes.appended))
  anywhere = (_row(d.bank, 0),) * sizes.recent  # it is linear
  return jax.vjp(loops.close_block, anywhere, d.running)[1]((d_appended, d.running))


_run.defvjp(partial(_forward, True), _backward)


def _row(stack: PyTree, i: Array | int) -> PyTree:
  return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, i, keepdims=False), stack)


def _rows(stack: PyTree, first: Array | int, count: int) -> PyTree:
  return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, first, count), stack)


def _with_rows(stack: PyTree, rows: PyTree, first: Array) -> PyTree:
  """Returns a stack with these rows from row `first` on; where it has None they are dropped."""

  def write(leaf: Array | None, new: Array) -> Array | None:
    if leaf is None:
      return None
    new = laid_out(new, jax.typeof(leaf).sharding.spec)
    return lax.dynamic_update_slice_in_dim(leaf, new, first, 0)

  return jax.tree.map(write, stack, rows, is_leaf=lambda leaf: leaf is None)


def _empty(like: Array | jax.ShapeDtypeStruct, *rows: int) -> Array:
  """Returns an uninitialised array [*rows, ...]: write all of it before reading it."""
  return typed_like(lax.empty((*rows, *like.shape), like.dtype), like)


def _empty_cotangent(leaf: Array) -> Array | None:
  return _empty(leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else None


def _by_type(context: PyTree) -> tuple[PyTree, PyTree]:
  """Splits arrays that have gradients from those that do not; None where the other has one."""
  floating = jax.tree.map(lambda a: jnp.issubdtype(jnp.result_type(a), jnp.inexact), context)
  smooth = jax.tree.map(lambda a, f: a if f else None, context, floating)
  return smooth, jax.tree.map(lambda a, f: None if f else a, context, floating)


def _merged(smooth: PyTree, constant: PyTree) -> PyTree:
  """Returns what `_by_type` split."""
  parts = smooth, constant
  return jax.tree.map(lambda a, b: b if a is None else a, *parts, is_leaf=lambda a: a is None)
