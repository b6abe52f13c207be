# options: num_streams max_forget
# free: write_spread retention implementation
import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.streams import Streams


class Residual(Streams):
  """p = σ(a), b = 2 σ(β) and M = diag(1 − m σ(−c)) are the same for all tokens; m is max_forget."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites, streams = (self.num_layers, self.num_sites), self.num_streams
    self.read_logit = nn.Parameter(torch.zeros(*sites, streams))
    self.write_logit = nn.Parameter(torch.zeros(*sites, streams))
    self.final_logit = nn.Parameter(torch.zeros(streams))
    if self.max_forget:
      self.retention_logit = nn.Parameter(torch.zeros(*sites, streams))

  def coefficients(self, state: Tensor, layer: int, site: int) -> tuple:
    """Returns p, M or None, and b."""
    mix = None
    if self.max_forget:
      forgets = (-self.retention_logit[layer, site].float()).sigmoid()
      mix = torch.diag(1 - self.max_forget * forgets)
    read, write = (p[layer, site].float().sigmoid() for p in (self.read_logit, self.write_logit))
    return read, mix, 2 * write

  def final(self, state: Tensor) -> Tensor:
    return self.weighed(state, self.final_logit.float().sigmoid())
