"""Packed weights of layers that have different numbers of sources."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from resjax.base import Array


@dataclasses.dataclass(frozen=True)
class RaggedRows:
  """Packs rows of different length: row i has one weight for each source in columns[i].

  A padded [L, N] array would hold weights that no layer uses.

  Attributes:
    columns: for every row the sources that it has weights for.
    width: number of all sources, N.
  """

  columns: tuple[tuple[int, ...], ...]
  width: int

  @classmethod
  def of(cls, columns: Sequence[Sequence[int]], width: int) -> "RaggedRows":
    """Returns rows whose columns are any sequences."""
    return cls(tuple(map(tuple, columns)), width)

  @property
  def size(self) -> int:
    """The number of packed weights."""
    return sum(map(len, self.columns))

  def row(self, packed: Array, index: int | Array) -> Array:
    """Unpacks one row.

    Args:
      packed: [size, ...].
      index: of the row; may be traced.

    Returns:
      [N, ...], zero where the row has no weight.
    """
    if not self.size:
      return jnp.zeros((self.width, *packed.shape[1:]), packed.dtype)
    return jnp.take(packed, jnp.asarray(self._places())[index], 0, mode="fill", fill_value=0)

  def newest_of_empty(self, index: int | Array) -> Array:
    """Returns weight one for source `index` if row `index` has no weights, else zeros.

    Args:
      index: of the row, and of its newest source, which it then reads alone; may be traced.

    Returns:
      [N], one-hot or zero.
    """
    empty = [not columns for columns in self.columns]
    return jnp.asarray(np.eye(len(empty), self.width) * np.reshape(empty, (-1, 1)))[index]

  def pack(self, rows: np.ndarray) -> np.ndarray:
    """Packs [rows, N, ...], the inverse of `row` for all rows."""
    return np.concatenate(
      [row[list(columns)] for row, columns in zip(rows, self.columns, strict=True)]
    )

  def _places(self) -> np.ndarray:
    """Returns the places of the weights [rows, N], and a place behind them where there is none."""
    places = np.full((len(self.columns), self.width), self.size, np.int32)
    start = 0
    for row, columns in zip(places, self.columns, strict=True):
      row[list(columns)] = np.arange(start, start + len(columns))
      start += len(columns)
    return places
