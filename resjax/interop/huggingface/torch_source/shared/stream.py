from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from .base import ResidualBase


class Stream(ResidualBase):
  """One residual stream x, which every site reads; a subclass says how it is written."""

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return x

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    return {"x": state}, None

  def final(self, state: Any) -> Tensor:
    return state
