"""Weights whose number grows with depth, packed into one parameter."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from resjax.typing import Array


@dataclasses.dataclass(frozen=True)
class RaggedRows:
  """Rows of different length, packed: row i has one weight for each source in columns[i].

  A padded [L, N] array would hold weights that no layer uses.

  Attributes:
    columns: for every row the sources that it has weights for.
    width: number of all sources, N.
  """

  columns: tuple[tuple[int, ...], ...]
  width: int

  @classmethod
  def of(cls, columns: Sequence[Sequence[int]], width: int) -> "RaggedRows":
    """Makes one from any sequences."""
    return cls(tuple(map(tuple, columns)), width)

  @property
  def size(self) -> int:
    """Number of packed weights."""
    return sum(map(len, self.columns))

  def row(self, packed: Array, index: int | Array) -> Array:
    """Unpacks one row.

    Args:
      packed: [size, ...].
      index: of the row; may be traced.

    Returns:
      [N, ...], zero where the row has no weight.
    """
    if not self.size:  # nothing to take from
      return jnp.zeros((self.width, *packed.shape[1:]), packed.dtype)
    return jnp.take(packed, jnp.asarray(self._places())[index], 0, mode="fill", fill_value=0)

  def newest_of_empty(self, index: int | Array) -> Array:
    """Weight one for source `index` if that row has no weights: it is no mix, but the newest.

    Args:
      index: of the row, whose newest source has the same number; may be traced.

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
    """Index into the packed weights [rows, N]; past their end where there is none."""
    places = np.full((len(self.columns), self.width), self.size, np.int32)
    start = 0
    for row, columns in zip(places, self.columns, strict=True):
      row[list(columns)] = np.arange(start, start + len(columns))
      start += len(columns)
    return places
