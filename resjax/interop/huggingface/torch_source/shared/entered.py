from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from .base import ResidualBase


class EnteredStream(ResidualBase):
  """A residual stream that a subclass changes before every layer; every site: x ← x + f(x).

  The state is x, and as sources the embedding and the streams that certain layers left.
  """

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return x, [x]

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Tensor]:
    x = state[0] if site else self.enter(*state, layer)
    return {"x": x}, x

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Tensor):
    x, sources = tape + out, state[1]
    keeps = site == self.num_sites - 1 and self.keeps(layer)
    return x, [*sources, x] if keeps else sources

  def final(self, state: Any) -> Tensor:
    return state[0]
