"""What the reverse kernels for TPUs take, and the steps within a tile that they share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array, PyTree
from resjax.kernels.mosaic_tpu import ROWS, TOKENS, Span, columns, for_each_chunk, wide
from resjax.kernels.operation import LANES, Ref
from resjax.kernels.streams.mosaic_tpu import plan as tiles
from resjax.kernels.streams.mosaic_tpu.plan import Chunks, Plan
from resjax.kernels.streams.operands import Read


class Given(NamedTuple):
  """The inputs of the reverse pass: `Inputs`, residuals, and the cotangents of the outputs.

  Attributes:
    products, mean_squares: see `Stats`, flat as the forward kernel wrote them.
    d_x: cotangent of the read [T, D].
    d_streams: of the streams after the write [R, T, D].
    d_weights: of the weights of the next write [R (R + 1), T] float32.
  """

  streams: Any
  weights: Any
  out: Any
  phi: Any
  parameters: Any
  gain: Any
  products: Any
  mean_squares: Any
  d_x: Any
  d_streams: Any
  d_weights: Any


class Unmix(NamedTuple):
  """References of `unmix`, the backward of the norm of a read.

  Attributes:
    d_x: cotangent of the read [TOKENS, D].
    gain: of the norm [1, D], or None.
    d_gain: its cotangent is added here [ROWS, D].
    factors: columns, of which every source is multiplied by one.
    mixed: room for the sum [ROWS, D].
    dots: columns for the products of the cotangent with every source.
  """

  d_x: Ref
  gain: Ref
  d_gain: Ref
  factors: Ref
  mixed: Ref
  dots: Ref


def sums(plan: Plan, given: Given) -> tuple[Any, Any, Any]:
  """Returns the shapes of sums over tokens: cotangents of φ, parameters and gain."""
  d_phi = plan.like(plan.projections, plan.rows, plan.width)
  d_gain = None if given.gain is None else plan.like(ROWS, plan.width)
  return None if given.phi is None else d_phi, given.parameters, d_gain


def clear(tree: PyTree) -> None:
  """Writes zeros to references."""
  for ref in jax.tree.leaves(tree):
    ref[...] = jnp.zeros_like(ref)


def add(tree: PyTree, values: PyTree) -> None:
  """Adds values to references."""
  for ref, value in zip(jax.tree.leaves(tree), jax.tree.leaves(values), strict=True):
    ref[...] += value


def unmix(
  read: Read,
  plan: Plan,
  refs: Unmix,
  sources: list[Chunks],
  rows: Span,
  target: Ref = None,
) -> tuple[Array, Array]:
  """The backward of mix and norm for a group of rows; returns two numbers for `norm_back`.

  They are the inverse RMS and the correction.

  Args:
    read: options.
    plan: sizes.
    refs: references.
    sources: the summands of the mix, in chunks.
    rows: the group.
    target: gets the cotangent of the sum [TOKENS, D] float32; None: it is not needed.
  """
  inverse_rms = correction = tiles.zeros()  # unused without a norm
  if refs.gain is not None:
    squares = tiles.mix(plan, sources, refs.factors, rows, refs.mixed)
    mean = jnp.sum(squares, axis=1, keepdims=True) / plan.width
    inverse_rms = jnp.broadcast_to(lax.rsqrt(mean + read.norm_eps), (ROWS, LANES))

    def project(lanes: Span, total: Array) -> Array:
      d, normed = wide(refs.d_x, rows, lanes), refs.mixed[:, lanes] * inverse_rms
      refs.d_gain[:, lanes] += d * normed
      return total + d * refs.gain[:, lanes] * normed

    total = for_each_chunk(plan.width, LANES, project, tiles.zeros())
    mean = jnp.sum(total, axis=1, keepdims=True) / plan.width
    correction = jnp.broadcast_to(mean, (ROWS, LANES))

  def chunk(lanes: Span, dots: list[Array]) -> list[Array]:
    d = wide(refs.d_x, rows, lanes)
    if refs.gain is not None:
      d = norm_back(d, refs.gain[:, lanes], refs.mixed[:, lanes], inverse_rms, correction)
    if target is not None:
      target[rows, lanes] = d
    return [dot + d * source(rows, lanes) for dot, source in zip(dots, sources, strict=True)]

  dots = for_each_chunk(plan.width, LANES, chunk, [tiles.zeros() for _ in sources])
  for number, dot in enumerate(dots):
    columns.put(refs.dots, rows, number, dot)
  return inverse_rms, correction


def norm_back(d: Array, gain: Array, mixed: Array, inverse_rms: Array, correction: Array) -> Array:
  """Returns the cotangent of x, from the cotangent of RMS(x) ⊙ gain, in a chunk.

  Args:
    d: cotangent of RMS(x) ⊙ gain.
    gain: of the norm.
    mixed: x.
    inverse_rms: of x.
    correction: the mean over channels of d ⊙ gain ⊙ x times the inverse RMS.
  """
  return inverse_rms * (d * gain - mixed * inverse_rms * correction)


def project_back(
  plan: Plan,
  phi: Ref,
  d_phi: Ref,
  d_products: Callable[[int], Array],
  streams: Ref,
  target: Ref,
) -> None:
  """Writes the part of the streams' cotangents through the products; adds to the cotangent of φ.

  Args:
    plan: sizes.
    phi: as `Phi` keeps it.
    d_phi: its cotangent so far [projections, rows, D].
    d_products: returns the cotangent of the products of a stream [K, TOKENS].
    streams: the streams after the write [R, TOKENS, D].
    target: [R, TOKENS, D] float32.
  """
  missing = jnp.zeros((plan.rows - plan.num_columns, TOKENS), jnp.float32)
  for r in range(plan.num_streams):
    d = d_products(r)
    if len(missing):
      d = jnp.concatenate([d, missing])
    number = 0 if plan.shared else r
    target[r] = tiles.product_back(plan, d, phi[number])
    d_phi[number] += tiles.product_phi(plan, d, streams[r])


def add_rows(
  plan: Plan,
  given: Given,
  streams: Ref,
  factors: tuple[Ref, Ref],
  d_read: Chunks,
  rows: Span,
  target: Ref,
) -> None:
  """Completes the cotangents of the streams of a group of rows.

  Args:
    plan: sizes.
    given: references, of which the cotangents of the streams are used.
    streams: the streams after the write [R, TOKENS, D].
    factors: columns of p, and of the cotangents of mean squares times 2 / D.
    d_read: the cotangent of Σ_r p_r H_r in chunks.
    rows: the group.
    target: [R, TOKENS, D] float32, which has what `project_back` wrote, if there is a φ.
  """
  for r in range(plan.num_streams):
    weight, scale = (columns.spread(ref, rows, r) for ref in factors)

    def chunk(
      lanes: Span, _: Any, r: int = r, weight: Array = weight, scale: Array = scale
    ) -> None:
      d = wide(given.d_streams, r, rows, lanes) + weight * d_read(rows, lanes)
      if plan.num_columns:
        d += target[r, rows, lanes] + scale * wide(streams, r, rows, lanes)
      target[r, rows, lanes] = d

    for_each_chunk(plan.width, LANES, chunk)


def write_rows(
  plan: Plan,
  sources: list[Chunks],
  targets: tuple[Ref, Ref],
  weights: Ref,
  dots: Ref,
  cotangents: Ref,
  rows: Span,
) -> None:
  """Writes the cotangents of pending streams and output, and of M and b as columns.

  Args:
    plan: sizes.
    sources: the pending streams and the output, in chunks.
    targets: their cotangents, [R, TOKENS, D] and [TOKENS, D].
    weights: columns of M and b of the write.
    dots: columns for their cotangents.
    cotangents: of the streams after the write [R, TOKENS, D] float32.
    rows: a group of rows.
  """
  count = plan.num_streams
  for r in range(count):

    def dot(lanes: Span, dots: list[Array], r: int = r) -> list[Array]:
      d = cotangents[r, rows, lanes]
      return [total + d * source(rows, lanes) for total, source in zip(dots, sources, strict=True)]

    found = for_each_chunk(plan.width, LANES, dot, [tiles.zeros() for _ in sources])
    for s, total in enumerate(found):
      columns.put(dots, rows, r * (count + 1) + s, total)

  for s in range(count + 1):
    factors = [columns.spread(weights, rows, r * (count + 1) + s) for r in range(count)]

    def chunk(lanes: Span, _: Any, s: int = s, factors: list[Array] = factors) -> None:
      total = factors[0] * cotangents[0, rows, lanes]
      for r in range(1, count):
        total += factors[r] * cotangents[r, rows, lanes]
      if s == count:
        targets[1][rows, lanes] = total.astype(targets[1].dtype)
      else:
        targets[0][s, rows, lanes] = total.astype(targets[0].dtype)

    for_each_chunk(plan.width, LANES, chunk)
