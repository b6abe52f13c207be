"""Runs the residual path of sublayers with Block AttnRes in every form that is measured.

A branch costs next to nothing. It is behind a barrier that keeps XLA from fusing across it, as a
matrix product would. The reads are softmax mixtures (and norms) of each other, so that XLA can
remove none.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from launch.bench.kernels import arg_specs
from launch.bench.kernels.arg_specs import NetworkShape
from launch.bench.kernels.reads import EPS, norm, residual_norm, stack_read
from launch.bench.kernels.take import take
from resjax.base import Array
from resjax.base.sharding import Layout
from resjax.kernels.depth_attention import (
  BlockRead,
  Sources,
  depth_attention,
  depth_attention_block,
  depth_attention_merge,
  two_phase_moves_less,
)


class Row(NamedTuple):
  """The parameters of one read: its query [D], and the gain [D] of the following norm or None."""

  query: Array
  gain: Array | None


class State(NamedTuple):
  """The sources [T, D], and the term that the next read adds to the last one, or None."""

  sources: tuple[Array, ...]
  addend: Array | None


Reader = Callable[[Row, State], tuple[Array, tuple[Array, ...]]]
Branch = Callable[[Array], Array]
BlockReader = Callable[[list[Row], State], State]


def forms(
  shape: NetworkShape, layout: Layout | None = None, branch: Branch | None = None
) -> dict[str, Callable[..., Array]]:
  """Returns the forms by name, as functions of queries, gains and first sources.

  Args:
    shape: the shape of the network.
    layout: the layout of the device that the kernels are compiled for; default: the one at hand.
    branch: the function of a sublayer, from its read to its output; default: `identity`.
  """
  branch = identity if branch is None else branch
  direct = reader_by(None, layout)
  readers = {
    "xla_stack": partial(block_by_reads, stack_reader, branch),
    "xla_no_stack": partial(block_by_reads, reader_by("reference", layout), branch),
    "direct": partial(block_by_reads, direct, branch),
    "two_phase": partial(block_in_two_phases, direct, branch, layout),
  }
  ends = {name: direct for name in readers}
  ends |= {"xla_stack": stack_reader, "xla_no_stack": reader_by("reference", layout)}
  walks: dict[str, Callable[..., Array]] = {
    name: partial(walk, shape, block, ends[name]) for name, block in readers.items()
  }
  return walks | {"residual_norm": partial(plain_walk, shape, branch)}


def least_passes(shape: NetworkShape) -> dict[str, tuple[float, float]]:
  """Returns the least traffic of every form, forward and backward; XLA's is that of `direct`."""
  direct = arg_specs.direct_forward(shape), arg_specs.direct_backward(shape)
  reads = shape.num_sublayers + shape.final_read
  return {
    "xla_stack": direct,
    "xla_no_stack": direct,
    "direct": direct,
    "two_phase": (arg_specs.two_phase_forward(shape), arg_specs.two_phase_backward(shape)),
    "residual_norm": (
      reads * arg_specs.residual_forward(),
      reads * arg_specs.residual_backward(),
    ),
  }


def walk(
  shape: NetworkShape,
  block: BlockReader,
  reader: Reader,
  queries: Array,
  gains: Array | None,
  sources: tuple[Array, ...],
) -> Array:
  """Returns the last read of the network, or the output of its last sublayer."""
  each = [None] * len(queries) if gains is None else list(gains)
  rows = [Row(*row) for row in zip(queries, each, strict=True)]
  state = State(sources, None)
  for start in range(0, shape.num_sublayers, shape.block_sublayers):
    stop = min(start + shape.block_sublayers, shape.num_sublayers)
    state = block(rows[start:stop], state)
  if shape.final_read:
    return reader(rows[-1], state)[0]
  return state.sources[-1] if state.addend is None else state.addend


def block_by_reads(reader: Reader, branch: Branch, rows: list[Row], state: State) -> State:
  """Runs one depth block in which every sublayer reads all sources."""
  for index, row in enumerate(rows):
    y, sources = reader(row, state)
    out = branch(y)
    state = State((*sources, out), None) if index == 0 else State(sources, out)
  return state


def block_in_two_phases(
  reader: Reader, branch: Branch, layout: Layout | None, rows: list[Row], state: State
) -> State:
  """Runs one depth block in two phases, or by reads where these move less memory."""
  if not two_phase_moves_less(len(state.sources), len(rows)):
    return block_by_reads(reader, branch, rows, state)
  queries = jnp.stack([row.query for row in rows])
  found = depth_attention_block(
    Sources(_added(state)), queries, eps=EPS, return_sources=True, layout=layout
  )
  read, threaded = cast(tuple[BlockRead, Sources], found)
  gain, addend = rows[0].gain, None
  (first, _), kept = take((read.out, read.lse), 0)
  read = read._replace(out=kept[0], lse=kept[1])
  running = branch(first if gain is None else norm(first, gain))
  for slot, row in list(enumerate(rows))[1:]:
    y, running, read = depth_attention_merge(
      read, slot, running, row.query, addend=addend, out_norm_scale=row.gain, eps=EPS, layout=layout
    )
    addend = branch(y)
  return State((*threaded.recent, running), addend)


def plain_walk(
  shape: NetworkShape,
  branch: Branch,
  queries: Array,
  gains: Array | None,
  sources: tuple[Array, ...],
) -> Array:
  """Runs as many adds and norms of a plain residual; without gains the queries are the gains."""
  gains = queries if gains is None else gains
  (y,) = (total,) = sources
  for gain in gains[: shape.num_sublayers + shape.final_read]:
    y, total = residual_norm(gain, total, branch(y))
  return y


def identity(y: Array) -> Array:
  """Returns y, opaque to XLA."""
  return jax.lax.optimization_barrier(y)


def sign_flip(y: Array) -> Array:
  """Returns −y, a new array like the output of a branch; it takes 2 passes each way."""
  return jax.lax.optimization_barrier(-jax.lax.optimization_barrier(y))


def stack_reader(row: Row, state: State) -> tuple[Array, tuple[Array, ...]]:
  """Adds, reads and normalises in three steps; the read stacks the sources."""
  sources = _added(state)
  h = stack_read(row.query, jnp.ones_like(row.query), sources)
  return h if row.gain is None else norm(h, row.gain), sources


def reader_by(implementation: str | None, layout: Layout | None) -> Reader:
  """Returns a reader that lets `depth_attention` add and normalise, and thread the sources."""

  def read(row: Row, state: State) -> tuple[Array, tuple[Array, ...]]:
    y, threaded = depth_attention(
      Sources(state.sources),
      row.query,
      addend=state.addend,
      out_norm_scale=row.gain,
      eps=EPS,
      return_sources=True,
      layout=layout,
      implementation=implementation,
    )
    assert isinstance(threaded, Sources)
    return y, threaded.recent

  return read


def _added(state: State) -> tuple[Array, ...]:
  """Returns the sources, with the addend added to the last one."""
  if state.addend is None:
    return state.sources
  return (*state.sources[:-1], state.sources[-1] + state.addend)
