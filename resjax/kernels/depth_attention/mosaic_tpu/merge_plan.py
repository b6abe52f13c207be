"""What both kernels of the merge for TPUs share: their tiles, and steps within a tile.

In memory, numbers per token lie on lanes: [rows, T], with one row per kind of number. In a kernel
such a number is [ROWS, LANES] for a group of `ROWS` tokens, with a token per row and the same value
on all lanes, so that it can be multiplied by a chunk of channels.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.base import Array
from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.operands import MergeOperands, Read, away_from_zero
from resjax.kernels.mosaic_tpu import ROWS, SUBLANES, Span, call, for_each_chunk
from resjax.kernels.operation import LANES, Ref

TOKENS = LANES  # tokens per tile
WORD = jnp.dtype("int16")  # a register has as many rows of it as of bfloat16
_CHUNKS = bf16_remainder.per_word(WORD)
_WORD_FLOPS = 8  # operations per element, about, that writing or reading the words takes
_SCALARS = 5  # numbers per token, at most
VMEM_LIMIT = 48 * 2**20  # of 64 MiB on v5p and 7x


@dataclasses.dataclass(frozen=True)
class MergePlan:
  """The tiles of a merge.

  Attributes:
    num_tokens: T.
    width: D.
    dtype: dtype of the running sum.
    eps: number added to the mean square of the running sum.
    out_norm_eps: number added to the mean square of the output.
    adds: whether there is an addend.
    normed: whether a norm of the output follows.
  """

  num_tokens: int
  width: int
  dtype: Any
  eps: float
  out_norm_eps: float
  adds: bool
  normed: bool

  @classmethod
  def of(cls, read: Read, operands: MergeOperands) -> "MergePlan":
    """Returns the plan of a merge, whose token axes are counted as one."""
    like, normed = operands.like, operands.out_norm_scale is not None
    tokens = math.prod(like.shape[:-1])
    eps = read.eps, read.out_norm_eps
    return cls(tokens, like.shape[-1], like.dtype, *eps, read.adds, normed)

  @property
  def num_tiles(self) -> int:
    """Number of tiles of tokens; the last one may be partly empty."""
    return -(-self.num_tokens // TOKENS)

  @property
  def grid(self) -> tuple[int, int]:
    """Parts that may run on cores of their own, and the number of tiles in each."""
    parts = 1 if self.num_tiles % 2 else 2
    return parts, self.num_tiles // parts

  @property
  def word_width(self) -> int:
    """W, the words per token with what rounding takes from the output; 0 if none are kept."""
    if not bf16_remainder.is_kept(self.dtype):
      return 0
    return bf16_remainder.num_words(self.width // LANES, WORD) * LANES

  @property
  def vmem_bytes(self) -> int:
    """Bytes of on-chip memory of the reverse kernel, which needs more than the forward one.

    These are two tiles of six arrays and of the words; gains and sums; and numbers per token, each
    on all lanes.
    """
    tiles = 2 * 6 * TOKENS * self.width * jnp.dtype(self.dtype).itemsize
    words = 2 * TOKENS * self.word_width * WORD.itemsize
    numbers = _SCALARS * TOKENS * LANES * 4
    return tiles + words + 2 * 5 * SUBLANES * self.width * 4 + numbers

  @property
  def vmem_limit(self) -> int:
    """Bytes of on-chip memory that the compiler may use."""
    return VMEM_LIMIT

  def tile(self, part: Array, step: Array) -> Array:
    """Returns the index of the tile at a step of a part of the grid."""
    return part * self.grid[1] + step

  def tokens(self, x: Array | None = None) -> call.Tiled:
    """Returns tiles of x [T, D]; without x of an array that the kernel writes."""
    shape = jax.ShapeDtypeStruct((self.num_tokens, self.width), self.dtype)
    spec = pl.BlockSpec((TOKENS, self.width), lambda p, i, _: (self.tile(p, i), 0))
    return call.Tiled(shape if x is None else x, spec)

  def words(self, x: Array | None = None) -> call.Tiled | None:
    """Returns tiles of words x [T, W], or of those that a kernel writes; None if none are kept."""
    if not self.word_width:
      return None
    shape = jax.ShapeDtypeStruct((self.num_tokens, self.word_width), WORD)
    spec = pl.BlockSpec((TOKENS, self.word_width), lambda p, i, _: (self.tile(p, i), 0))
    return call.Tiled(shape if x is None else x, spec)

  def read_spec(self) -> pl.BlockSpec:
    """Returns tiles of one row of [S, T, D], that of the read which is merged."""
    shape = None, TOKENS, self.width
    return pl.BlockSpec(shape, lambda p, i, counts: (counts[1], self.tile(p, i), 0))

  def row(self, x: Array | None) -> call.Tiled | None:
    """Returns x [D] as float32 [ROWS, D], one tile that stays on the chip; None for None."""
    if x is None:
      return None
    rows = jnp.broadcast_to(x.astype(jnp.float32), (ROWS, self.width))
    return call.Tiled(rows, pl.BlockSpec((ROWS, self.width), lambda p, i, _: (0, 0)))

  def sums(self) -> call.Tiled:
    """Returns tiles of sums over the tokens of each part [parts, SUBLANES, D]."""
    shape = jax.ShapeDtypeStruct((self.grid[0], SUBLANES, self.width), jnp.float32)
    return call.Tiled(shape, pl.BlockSpec((None, SUBLANES, self.width), lambda p, i, _: (p, 0, 0)))

  def scalars(self, rows: int, x: Array | None = None) -> call.Tiled:
    """Returns tiles of numbers per token x [rows, padded T], or of some that the kernel writes."""
    shape = jax.ShapeDtypeStruct((rows, self.num_tiles * TOKENS), jnp.float32)
    spec = pl.BlockSpec((rows, TOKENS), lambda p, i, _: (0, self.tile(p, i)))
    return call.Tiled(shape if x is None else x, spec)

  def pad(self, *numbers: Array) -> Array:
    """Returns numbers per token, each [T], as rows [rows, padded T]."""
    return jnp.pad(jnp.stack(numbers), ((0, 0), (0, self.num_tiles * TOKENS - self.num_tokens)))

  def gain(self, scale: Array | None) -> Array | None:
    """Returns the gain of the output [D] in float32, none of it zero; None for None."""
    if scale is None:
      return None
    return away_from_zero(scale.astype(jnp.float32), self.dtype)

  def for_each_chunk(self, run: Callable[[Span, Any], Any], carry: Any = None) -> Any:
    """Folds `carry = run(lanes, carry)` over all chunks of LANES channels."""
    return for_each_chunk(self.width, LANES, run, carry)

  def for_each_word(self, run: Callable[[Span, list[Span], Any], Any], carry: Any = None) -> Any:
    """Folds `carry = run(word, chunks, carry)` over groups of chunks that share words.

    `word` are the lanes of these words in [T, W], and `chunks` the lanes of the chunks in [T, D],
    at most as many as a word holds.
    """

    def group(lanes: Span, carry: Any) -> Any:
      first, word = lanes.start, lanes.start // _CHUNKS
      if not isinstance(first, int):
        first, word = pl.multiple_of(first, span), pl.multiple_of(word, LANES)
      chunks = [pl.ds(first + start, LANES) for start in range(0, lanes.size, LANES)]
      return run(pl.ds(word, LANES), chunks, carry)

    span = _CHUNKS * LANES
    whole = self.width - self.width % span
    if whole:
      carry = for_each_chunk(whole, span, group, carry, at_once=4)
    return group(pl.ds(whole, self.width - whole), carry) if self.width > whole else carry

  def cost(self, arrays: int, flops: int) -> pl.CostEstimate:
    """Returns the cost of moving `arrays` [T, D] and the words, with `flops` per element."""
    elements = self.num_tokens * self.width
    size = jnp.dtype(self.dtype).itemsize
    words = self.num_tokens * self.word_width * WORD.itemsize
    flops += _WORD_FLOPS if words else 0
    return pl.CostEstimate(
      flops=flops * elements,
      transcendentals=self.num_tokens,
      bytes_accessed=arrays * size * elements + words,
    )


def zeros() -> Array:
  """Returns a chunk [ROWS, LANES] of zeros."""
  return jnp.zeros((ROWS, LANES), jnp.float32)


def sum_lanes(x: Array) -> Array:
  """Returns the sum over the lanes of each row, on all lanes."""
  return jnp.broadcast_to(jnp.sum(x, axis=-1, keepdims=True), x.shape)


def load(ref: Ref, rows: Span, lanes: Span) -> Array:
  """Returns a chunk [ROWS, LANES] in float32."""
  return ref[rows, lanes].astype(jnp.float32)


def spread_scalars(numbers: Ref, scratch: Ref) -> None:
  """Copies numbers per token [rows, TOKENS] to all lanes of scratch [rows, TOKENS, LANES]."""
  for index in range(numbers.shape[0]):
    scratch[index] = jnp.broadcast_to(numbers[index : index + 1, :], (LANES, TOKENS)).T


def put_scalars(scratch: Ref, rows: Span, numbers: list[Array]) -> None:
  """Writes numbers of a group of tokens, each [ROWS, LANES], to one lane each of scratch."""
  lane, joined = lax.broadcasted_iota(jnp.int32, (ROWS, LANES), 1), zeros()
  for index, number in enumerate(numbers):
    joined = jnp.where(lane == index, number, joined)
  scratch[rows, :] = joined


def collect_scalars(scratch: Ref, numbers: Ref) -> None:
  """Copies the numbers that `put_scalars` wrote to [rows, TOKENS]."""
  numbers[...] = scratch[...].T[: numbers.shape[0]]
