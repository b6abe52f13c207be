# options: num_streams rank shared_gain eps
# free: init implementation
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..configuration import ResjaxConfig
from ..shared.streams import Streams


class Residual(Streams):
  """x = Σ_s G_s ⊙ N_s / R, H_s ← H_s + g_s f(x), with streams H_s and N_s = RMS(H_s) ⊙ γ_s.

  G = σ(W_up silu(W_down vec(N) / R)) is a gate per channel and stream, g = 2 σ(W_inject vec(N) / R)
  a number per stream. The output is one more read. What is read has no other norm.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites, streams, width = (self.num_layers, self.num_sites), self.num_streams, self.width
    rank, gains = self.rank or max(1, width // 8), 1 if self.shared_gain else streams
    self.gain = nn.Parameter(torch.ones(*sites, gains, width))
    self.down = nn.Parameter(torch.zeros(*sites, streams, width, rank))
    self.up = nn.Parameter(torch.zeros(*sites, streams, rank, width))
    self.inject = nn.Parameter(torch.zeros(*sites, streams, width, streams))
    self.final_gain = nn.Parameter(torch.ones(gains, width))
    self.final_down = nn.Parameter(torch.zeros(streams, width, rank))
    self.final_up = nn.Parameter(torch.zeros(streams, rank, width))

  def gated(self, state: Tensor, gain: Tensor, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x [B, T, D], and vec(N) / R [B, T, R D]."""
    dtype = state.dtype
    normed = functional.rms_norm(state.float(), (self.width,), eps=self.eps) * gain.float()
    flat = normed.to(dtype).float().flatten(-2) / self.num_streams
    inner = functional.silu(flat @ down.float().flatten(0, 1)).to(dtype)
    gate = torch.einsum("btk,skd->btsd", inner.float(), up.float()).sigmoid()
    return (gate * normed).mean(-2).to(dtype), flat

  def read(self, state: Tensor, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    weights = (weight[layer, site] for weight in (self.gain, self.down, self.up))
    x, flat = self.gated(state, *weights)
    strength = 2 * (flat @ self.inject[layer, site].float().flatten(0, 1)).sigmoid()
    return {"x": x}, (None, strength)

  def final(self, state: Tensor) -> Tensor:
    return self.gated(state, self.final_gain, self.final_down, self.final_up)[0]
