# options: layers_per_block output_gate null_source views num_heads eps
# free: implementation two_phase
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ..shared.delta_reads import DeltaReads


class Residual(DeltaReads):
  """Sites read the embedding and the sums of the outputs of completed depth blocks."""

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return [x], x, torch.zeros_like(x)

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Any) -> Any:
    sources, x, delta = state[0], state[1] + out, state[2] + out
    if site < self.num_sites - 1 or (layer + 1) % self.layers_per_block:
      return sources, x, delta
    return [*sources, delta], x, torch.zeros_like(delta)
