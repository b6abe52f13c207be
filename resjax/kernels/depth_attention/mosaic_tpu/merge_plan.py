"""What both kernels of the merge for TPUs share.

Numbers per token lie on lanes in memory, one row of a tile [rows, TOKENS] for each; in a kernel
those of a group of tokens are [ROWS, LANES], the same on all lanes of a row.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_tpu import walks
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS, SUBLANES
from resjax.kernels.depth_attention.operands import Read
from resjax.kernels.depth_attention.two_phase_operands import MergeOperands, away_from_zero
from resjax.typing import Array

TOKENS = LANES  # of a tile
WORD = jnp.int16  # tiles of it have as many rows as those of bfloat16
_CHUNKS = bf16_remainder.per_word(WORD)
_WORD_FLOPS = 8  # per element, about, to write or to read the words
_SCALARS = 5  # per token, at most, in rows of their own
VMEM_LIMIT = 48 * 2**20  # of 64 MiB on v5p and 7x


@dataclasses.dataclass(frozen=True)
class MergePlan:
  """Sizes of a merge that are known when a kernel is traced.

  Attributes:
    num_tokens: T.
    width: D.
    dtype: of the running sum.
    eps: added to mean squares.
    adds: whether there is an addend.
    normed: whether a norm follows.
  """

  num_tokens: int
  width: int
  dtype: Any
  eps: float
  adds: bool
  normed: bool

  @classmethod
  def of(cls, read: Read, operands: MergeOperands) -> "MergePlan":
    """Returns the plan of a merge, the token axes of its operands folded into one."""
    like, normed = operands.like, operands.out_norm_scale is not None
    tokens = math.prod(like.shape[:-1])
    return cls(tokens, like.shape[-1], like.dtype, read.eps, read.adds, normed)

  @property
  def num_tiles(self) -> int:
    """Number of tiles of tokens."""
    return -(-self.num_tokens // TOKENS)

  @property
  def grid(self) -> tuple[int, int]:
    """Parts that may run on cores of their own, tiles of each."""
    return walks.two_parts(self.num_tiles)

  @property
  def word_width(self) -> int:
    """Words per token of what rounding takes from the output; 0 where that is not kept."""
    if not bf16_remainder.are_kept(self.dtype):
      return 0
    return bf16_remainder.num_words(self.width // LANES, WORD) * LANES

  @property
  def vmem_bytes(self) -> int:
    """On-chip memory of the reverse pass, the larger one.

    Six arrays and the words, twice; gains and sums; numbers per token on all lanes.
    """
    tiles = 2 * 6 * TOKENS * self.width * jnp.dtype(self.dtype).itemsize
    words = 2 * TOKENS * self.word_width * jnp.dtype(WORD).itemsize
    numbers = _SCALARS * TOKENS * LANES * 4
    return tiles + words + 2 * 5 * SUBLANES * self.width * 4 + numbers

  def tile(self, part: Array, step: Array) -> Array:
    """Returns the index of a tile."""
    return part * self.grid[1] + step

  def tokens_spec(self) -> pl.BlockSpec:
    """Tiles of [T, D]."""
    return pl.BlockSpec((TOKENS, self.width), lambda p, i, _: (self.tile(p, i), 0))

  def words_spec(self) -> pl.BlockSpec | None:
    """Tiles of words [T, W], or None."""
    if not self.word_width:
      return None
    return pl.BlockSpec((TOKENS, self.word_width), lambda p, i, _: (self.tile(p, i), 0))

  def read_spec(self) -> pl.BlockSpec:
    """Tiles of the row of [S, T, D] that is merged."""
    shape = None, TOKENS, self.width
    return pl.BlockSpec(shape, lambda p, i, counts: (counts[1], self.tile(p, i), 0))

  def row_spec(self) -> pl.BlockSpec:
    """A row as [ROWS, D], which stays."""
    return pl.BlockSpec((ROWS, self.width), lambda p, i, _: (0, 0))

  def sum_spec(self) -> pl.BlockSpec:
    """Sums over the tokens of each part: [parts, SUBLANES, D]."""
    return pl.BlockSpec((None, SUBLANES, self.width), lambda p, i, _: (p, 0, 0))

  def scalars_spec(self, rows: int) -> pl.BlockSpec:
    """Tiles of numbers per token [rows, padded T]."""
    return pl.BlockSpec((rows, TOKENS), lambda p, i, _: (0, self.tile(p, i)))

  def array(self) -> jax.ShapeDtypeStruct:
    """Shape of [T, D]."""
    return jax.ShapeDtypeStruct((self.num_tokens, self.width), self.dtype)

  def words(self) -> jax.ShapeDtypeStruct | None:
    """Shape of words [T, W], or None."""
    if not self.word_width:
      return None
    return jax.ShapeDtypeStruct((self.num_tokens, self.word_width), WORD)

  def scalars(self, rows: int) -> jax.ShapeDtypeStruct:
    """Shape of numbers per token."""
    return jax.ShapeDtypeStruct((rows, self.num_tiles * TOKENS), jnp.float32)

  def sums(self) -> jax.ShapeDtypeStruct:
    """Shape of the sums of all parts."""
    return jax.ShapeDtypeStruct((self.grid[0], SUBLANES, self.width), jnp.float32)

  def pad(self, *numbers: Array) -> Array:
    """Joins numbers per token [T] to rows [rows, padded T]."""
    return jnp.pad(jnp.stack(numbers), ((0, 0), (0, self.num_tiles * TOKENS - self.num_tokens)))

  def rows_of(self, row: Array) -> Array:
    """Returns [D] as float32 [ROWS, D]."""
    return jnp.broadcast_to(row.astype(jnp.float32), (ROWS, self.width))

  def gain(self, scale: Array) -> Array:
    """Returns the gain of the output."""
    return away_from_zero(scale.astype(jnp.float32), self.dtype)

  def for_each_chunk(self, run: Any, carry: Any = None) -> Any:
    """Folds `carry = run(lanes, carry)` over all chunks of LANES channels."""
    return walks.for_each_chunk(self.width, LANES, run, carry)

  def for_each_word(self, run: Any, carry: Any = None) -> Any:
    """Folds `carry = run(word, chunks, carry)` over groups of chunks that share a word.

    `word` are its lanes, of [T, W]; `chunks` those of the chunks, as many as a word holds.
    """

    def group(lanes, carry):
      first, word = lanes.start, lanes.start // _CHUNKS
      if not isinstance(first, int):
        first, word = pl.multiple_of(first, span), pl.multiple_of(word, LANES)
      chunks = [pl.ds(first + start, LANES) for start in range(0, lanes.size, LANES)]
      return run(pl.ds(word, LANES), chunks, carry)

    span = _CHUNKS * LANES
    whole = self.width - self.width % span
    if whole:
      carry = walks.for_each_chunk(whole, span, group, carry, at_once=4)
    return group(pl.ds(whole, self.width - whole), carry) if self.width > whole else carry

  def compiler_params(self) -> pltpu.CompilerParams:
    """Parts on cores of their own, the tiles of a part one after another."""
    return pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT
    )

  def cost(self, arrays: int, flops: int) -> pl.CostEstimate:
    """Declares that `arrays` [T, D] and the words are moved, with `flops` per element."""
    elements = self.num_tokens * self.width
    size = jnp.dtype(self.dtype).itemsize
    words = self.num_tokens * self.word_width * jnp.dtype(WORD).itemsize
    flops += _WORD_FLOPS if words else 0
    return pl.CostEstimate(
      flops=flops * elements,
      transcendentals=self.num_tokens,
      bytes_accessed=arrays * size * elements + words,
    )


def zeros() -> Array:
  """Returns a chunk of zeros."""
  return jnp.zeros((ROWS, LANES), jnp.float32)


def sum_lanes(x: Array) -> Array:
  """Returns the sum over the lanes of each row, on all of them."""
  return jnp.broadcast_to(jnp.sum(x, axis=-1, keepdims=True), x.shape)


def load(ref: Any, rows: Any, lanes: Any) -> Array:
  """Returns a chunk [ROWS, LANES] in float32."""
  return ref[rows, lanes].astype(jnp.float32)


def spread_scalars(numbers: Any, scratch: Any) -> None:
  """Copies numbers per token from lanes, [rows, TOKENS], to rows, scratch [rows, TOKENS, LANES]."""
  for index in range(numbers.shape[0]):
    scratch[index] = jnp.broadcast_to(numbers[index : index + 1, :], (LANES, TOKENS)).T


def put_scalars(scratch: Any, rows: Any, numbers: list[Array]) -> None:
  """Writes numbers of a group of tokens, [ROWS, LANES] each, to the first lanes of their rows."""
  lane, joined = lax.broadcasted_iota(jnp.int32, (ROWS, LANES), 1), zeros()
  for index, number in enumerate(numbers):
    joined = jnp.where(lane == index, number, joined)
  scratch[rows, :] = joined


def collect_scalars(scratch: Any, numbers: Any) -> None:
  """Copies what `put_scalars` wrote to lanes, [rows, TOKENS]."""
  numbers[...] = scratch[...].T[: numbers.shape[0]]


def share(log_odds: Array) -> Array:
  """Returns what a logit above all others by `log_odds` gets of a softmax."""
  return 1 / (1 + jnp.exp(-log_odds))
