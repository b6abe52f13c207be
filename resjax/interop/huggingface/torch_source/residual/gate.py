# options: granularity kappa scope
import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.attenuated import AttenuatedStream


class Residual(AttenuatedStream):
  """x ← α x + f(x), with a learned α per layer, depth mixture, token or channel.

  layer: α = 2 σ(a); depth_mixture: α = 1 − κ (softmax(a)[layer] − 1/L); token: α = 2 σ(w · n + b);
  channel: α = 2 σ(w ⊙ n + b), with n the normalised input of the branch.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    gates = self.num_layers, self.num_sites if self.scope == "sublayer" else 1
    by_input = self.granularity in ("token", "channel")
    if self.granularity == "depth_mixture":
      self.bias = nn.Parameter(torch.zeros(self.num_layers))
    elif self.granularity == "channel":
      self.bias = nn.Parameter(torch.zeros(*gates, self.width))
    else:
      self.bias = nn.Parameter(torch.zeros(*gates))
    self.weight = nn.Parameter(torch.zeros(*gates, self.width)) if by_input else None

  def stream_factor(self, layer: int, site: int, normed: dict[str, Tensor]) -> Tensor:
    """Returns α, which broadcasts against x."""
    if self.granularity == "depth_mixture":
      share = self.bias.float().softmax(0)[layer]
      return 1.0 - self.kappa * (share - 1.0 / self.num_layers)
    logit = self.bias[layer, site].float()
    if self.weight is not None:
      products = self.weight[layer, site].float() * normed["x"].float()
      logit = logit + (products if self.granularity == "channel" else products.sum(-1, True))
    return 2.0 * logit.sigmoid()
