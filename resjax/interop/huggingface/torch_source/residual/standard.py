from typing import Any

from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.stream import Stream


class Residual(Stream):
  """x ← x + f(x)."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    return state + out
