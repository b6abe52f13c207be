# options: num_streams dynamic tanh norm eps
# free: implementation
import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.streams import Streams


class Residual(Streams):
  """α [R, R + 1] has the column p and the columns of Mᵀ, and β is b; tokens may add to them.

  α_s += s_α tanh(norm(H_s) W_α) and β_s += s_β tanh(norm(H_s) W_β), with or without the tanh.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites, streams = (self.num_layers, self.num_sites), self.num_streams
    self.alpha = nn.Parameter(torch.ones(*sites, streams, streams + 1))
    self.beta = nn.Parameter(torch.ones(*sites, streams))
    if self.dynamic:
      self.weight = nn.Parameter(torch.zeros(*sites, self.width, streams + 2))
      self.scale = nn.Parameter(torch.zeros(*sites, 2))

  def coefficients(self, state: Tensor, layer: int, site: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns p, M and b."""
    alpha, beta = self.alpha[layer, site].float(), self.beta[layer, site].float()
    if self.dynamic:
      centred = state - state.mean(-1, keepdim=True) if self.norm == "layernorm" else state
      normed = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps)
      moved = normed @ self.weight[layer, site].float()
      moved = moved.tanh() if self.tanh else moved
      scale = self.scale[layer, site].float()
      alpha, beta = alpha + scale[0] * moved[..., :-1], beta + scale[1] * moved[..., -1]
    return alpha[..., 0], alpha[..., 1:].transpose(-1, -2), beta
