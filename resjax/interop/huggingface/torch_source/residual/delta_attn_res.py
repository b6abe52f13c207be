# options: output_gate null_source views num_heads eps
# free: implementation two_phase
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from ..shared.delta_reads import DeltaReads


class Residual(DeltaReads):
  """Sites read the embedding and the outputs of all earlier sites."""

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return [x], x

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Any) -> Any:
    return [*state[0], out], state[1] + out
