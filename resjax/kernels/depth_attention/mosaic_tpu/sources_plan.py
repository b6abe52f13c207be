"""How the tokens and sources of a device are cut into tiles, for the direct read and phase 1."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.base import Array
from resjax.kernels.depth_attention.mosaic_tpu import tiles
from resjax.kernels.depth_attention.mosaic_tpu.tiles import PassSizes, TpuTiles
from resjax.kernels.depth_attention.operands import Operands
from resjax.kernels.mosaic_tpu import SUBLANES, call
from resjax.kernels.operation import LANES, Ref


@dataclasses.dataclass(frozen=True)
class SourcesPlan:
  """The tiles of a pass over sources.

  Attributes:
    sizes: sizes of the pass.
    tiles: tile sizes.
    eps: number added to mean squares.
  """

  sizes: PassSizes
  tiles: TpuTiles
  eps: float

  @property
  def dtype(self) -> jnp.dtype:
    """The dtype of the sources."""
    return jnp.dtype(self.sizes.dtype)

  @property
  def vmem_limit(self) -> int:
    """Bytes of on-chip memory that the compiler may use."""
    return tiles.vmem_limit(self.sizes)

  @property
  def num_tiles(self) -> int:
    """Number of tiles of tokens; the last one may be partly empty."""
    return -(-self.sizes.num_tokens // self.tiles.tokens)

  @property
  def grid(self) -> tuple[int, int]:
    """Parts that may run on cores of their own, and the number of tiles in each.

    `LANES` tokens whose statistics share a register are in one part.
    """
    parts = 1 if self.num_tiles % (2 * max(1, LANES // self.tiles.tokens)) else 2
    return parts, self.num_tiles // parts

  def tile(self, part: Array, step: Array) -> Array:
    """Returns the index of the tile at a step of a part of the grid."""
    return part * self.grid[1] + step

  def source_shape(self) -> jax.ShapeDtypeStruct:
    """Returns the shape [T, D] of a source."""
    return jax.ShapeDtypeStruct((self.sizes.num_tokens, self.sizes.width), self.dtype)

  def tokens_spec(self) -> pl.BlockSpec:
    """Returns tiles of [T, D]."""
    return pl.BlockSpec((self.tiles.tokens, self.sizes.width), lambda p, i, _: (self.tile(p, i), 0))

  def whole_spec(self, rows: int = SUBLANES) -> pl.BlockSpec:
    """Returns one tile with all of [rows, D], which stays on the chip."""
    return pl.BlockSpec((rows, self.sizes.width), lambda p, i, _: (0, 0))

  def slots(self, operands: Operands) -> tuple[call.Tiled, ...]:
    """Returns the tiles of all slots: of bank [N_max, T, D], once per slot, then of [T, D]."""
    banked = (call.Tiled(operands.bank, self._bank_spec(n)) for n in range(self.sizes.num_banked))
    return *banked, *(call.Tiled(source, self.tokens_spec()) for source in operands.recent)

  def _bank_spec(self, slot: int) -> pl.BlockSpec:
    # A slot that holds nothing points to the first tile of slot 0 at all steps, and a tile whose
    # index does not change is not fetched again. If any slot holds a source, slot 0 does; then
    # what is fetched are finite numbers.
    def index(p: Array, i: Array, counts: Ref) -> tuple:
      valid = slot < counts[0]
      return jnp.where(valid, slot, 0), jnp.where(valid, self.tile(p, i), 0), 0

    return pl.BlockSpec((None, self.tiles.tokens, self.sizes.width), index)

  def clear_rows_past_end(self, tile: Array, refs: Sequence[Ref]) -> None:
    """Writes zeros to the rows of the last tile that belong to no token, which hold anything."""
    rest = self.sizes.num_tokens % self.tiles.tokens
    if not rest:
      return

    @pl.when(tile == self.num_tiles - 1)
    def _() -> None:
      rows = lax.broadcasted_iota(jnp.int32, (self.tiles.tokens, LANES), 0)
      for ref in refs:
        for start in range(0, self.sizes.width, LANES):
          lanes = pl.ds(start, LANES)
          kept = jnp.where(rows < rest, ref[:, lanes].astype(jnp.float32), 0)
          ref[:, lanes] = kept.astype(ref.dtype)

  def cost(
    self, flops: int, transcendentals: int, arrays: int, numbers: int = 0
  ) -> pl.CostEstimate:
    """Returns the cost of a kernel.

    Args:
      flops: floating-point operations per token and channel.
      transcendentals: exponentials per token.
      arrays: number of arrays [T, D] that are read or written.
      numbers: further float32 numbers that are read or written.
    """
    tokens, width = self.sizes.num_tokens, self.sizes.width
    return pl.CostEstimate(
      flops=flops * tokens * width,
      transcendentals=transcendentals * tokens,
      bytes_accessed=arrays * tokens * width * self.dtype.itemsize + 4 * numbers,
    )

  def updates(self, interpret: Any) -> tuple[tuple[str, str], ...]:
    """Returns which cotangents of sources a reverse kernel adds to in place, see `launch`.

    If the last tile is partly empty, the interpreter returns too many rows of tiled arrays that are
    updated, so the cotangents of recent sources are not updated in place then.
    """
    partly_empty = self.sizes.num_tokens % self.tiles.tokens
    recent = () if interpret and partly_empty else (("d_sources.recent", "recent"),)
    return ("d_sources.bank", "bank"), *recent
