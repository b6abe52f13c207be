"""Tile sizes of the kernels for TPUs, and how much on-chip memory they need."""

import dataclasses
import math

import jax.numpy as jnp

from resjax.base.hardware import TPU_CHIPS
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.mosaic_tpu import ROWS, SUBLANES, chip_of
from resjax.kernels.operation import LANES

_MIB = 2**20
_TOKENS = (256, 128, 64, 32, 16)
# The first tile is read and the last one written while nothing else runs. With fewer tiles per core
# than this, that costs more than the fixed cost of smaller tiles, of which there are more.
_MIN_TILES = 16
# Memory left for registers that are spilled, and for the descriptors of copies.
_SPARE = 6 * _MIB


@dataclasses.dataclass(frozen=True)
class TpuTiles:
  """Tile sizes of a depth read on a TPU.

  Attributes:
    tokens: number of tokens per tile; all N rows of these tokens are on the chip at once.
    slots: number of sources per group; the code of a group has no branches, and its factors stay
      in registers.
  """

  tokens: int
  slots: int = 4

  def __post_init__(self):
    fits_stats = self.tokens % LANES == 0 or (self.tokens > 0 and LANES % self.tokens == 0)
    if self.tokens < ROWS or self.tokens % ROWS or not fits_stats:
      raise ValueError(
        f"TpuTiles.tokens={self.tokens}; allowed: 16, 32, 64 and multiples of {LANES}"
      )
    if not 1 <= self.slots <= LANES:
      raise ValueError(f"TpuTiles.slots={self.slots}; allowed: 1 to {LANES}")


@dataclasses.dataclass(frozen=True)
class PassSizes:
  """The sizes of a forward or a reverse pass over the rows of one device, which tiles depend on.

  Attributes:
    name: `forward` or `backward`.
    chip: key of `TPU_CHIPS`.
    num_tokens: T.
    width: D.
    num_banked: N_max, the number of slots of the bank, or 0.
    num_recent: number of sources that are arrays of their own.
    dtype: name of the dtype of the sources.
    adds: whether there is an addend.
    normed: whether a norm of the output follows.
    threaded: whether the cotangents of sources are added to.
  """

  name: str
  chip: str
  num_tokens: int
  width: int
  num_banked: int
  num_recent: int
  dtype: str
  adds: bool
  normed: bool
  threaded: bool

  @classmethod
  def of(cls, name: str, read: Read, operands: Operands) -> "PassSizes":
    """Returns the sizes of a pass of a read, whose token axes are counted as one."""
    like, num_recent = operands.like, len(operands.recent)
    return cls(
      name=name,
      chip=chip_of(read.layout),
      num_tokens=math.prod(like.shape[:-1]),
      width=like.shape[-1],
      num_banked=operands.num_slots - num_recent,
      num_recent=num_recent,
      dtype=jnp.dtype(like.dtype).name,
      adds=read.adds,
      normed=operands.out_norm_scale is not None,
      threaded=read.threaded,
    )

  @property
  def num_slots(self) -> int:
    """N, the number of slots, whether they hold a source or not."""
    return self.num_banked + self.num_recent

  def vmem_bytes(self, tiles: TpuTiles) -> dict[str, int]:
    """Returns the bytes of VMEM by kind of array; pipelined arrays have two tiles each."""
    tile = tiles.tokens * self.width * jnp.dtype(self.dtype).itemsize
    row, rows = (n * self.width * 4 for n in (SUBLANES, ROWS))
    stats_tokens = max(LANES, tiles.tokens)
    slots = -(-self.num_slots // SUBLANES) * SUBLANES
    terms = {
      "sources": 2 * self.num_slots * tile,
      "query and gain": 2 * (1 + self.normed) * row,
      "statistics": 2 * (2 * slots + SUBLANES) * stats_tokens * 4,
    }
    if self.name == "forward":
      return terms | {
        "output": 2 * tile,
        "addend and sum": 4 * tile if self.adds else 0,
        "scratch": (2 * stats_tokens + tiles.tokens) * LANES * 4 + rows,
      }
    return terms | {
      "cotangent of the output": 2 * tile,
      "cotangents of sources": (4 if self.threaded else 2) * self.num_recent * tile,
      "cotangent of the bank": (3 if self.threaded else 2) * self.num_banked * tile,
      "cotangents of query and gain": 2 * (1 + self.normed) * row,
      "scratch": (3 * stats_tokens + ROWS) * LANES * 4 + 2 * rows,
    }

  def are_enough(self, tiles: TpuTiles) -> bool:
    """Returns whether tiles of these sizes keep every core busy."""
    return tiles.tokens * _MIN_TILES * TPU_CHIPS[self.chip].device_cores <= self.num_tokens

  def fits(self, tiles: TpuTiles) -> bool:
    """Returns whether tiles of these sizes have room on the chip."""
    return sum(self.vmem_bytes(tiles).values()) + _SPARE <= TPU_CHIPS[self.chip].vmem


def choose(sizes: PassSizes) -> TpuTiles | None:
  """Returns the largest tiles that fit and keep all cores busy; None if none fit.

  If no tiles that fit are small enough to keep all cores busy, they are the smallest.
  """
  fitting = [tiles for tiles in map(TpuTiles, _TOKENS) if sizes.fits(tiles)]
  if not fitting:
    return None
  enough = [tiles for tiles in fitting if sizes.are_enough(tiles)]
  return enough[0] if enough else fitting[-1]


def obstacle(sizes: PassSizes) -> str | None:
  """Returns why no tile fits on the chip, with the memory that each term needs; or None."""
  if choose(sizes):
    return None
  terms = sizes.vmem_bytes(TpuTiles(ROWS))
  listed = ", ".join(f"{name} {size / _MIB:.1f}" for name, size in terms.items() if size)
  return (
    f"{ROWS} tokens of {sizes.num_slots} sources of width {sizes.width} need "
    f"{sum(terms.values()) / _MIB:.1f} MiB on the chip in the {sizes.name} pass ({listed}), "
    f"{sizes.chip} has {(TPU_CHIPS[sizes.chip].vmem - _SPARE) / _MIB:.0f}"
  )


def vmem_limit(sizes: PassSizes) -> int:
  """Returns how many bytes of on-chip memory the compiler may give a kernel."""
  return TPU_CHIPS[sizes.chip].vmem - _SPARE // 3
