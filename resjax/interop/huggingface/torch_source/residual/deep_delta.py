# options: value_width compressor kernel_size embedding_expansion shared_compressor value
# options: beta_hidden eps
# free: beta_init
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.base import ResidualBase
from ..shared.past_tokens import PastTokens


class Residual(ResidualBase):
  """X ← X + β k (vᵀ − kᵀX), an erase and a write along k, the direction of a branch's output.

  X is R rows of width D per token, which a compressor makes one for a branch to read. With c the
  normalised input of the branch: k = o / sqrt(‖o‖² + eps²), β = 2 σ(w_β · c + b_β), v = W_v c.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    rows, taps, width = self.value_width, self.kernel_size, self.width
    sites = self.num_layers, self.num_sites
    self.beta_weight = nn.Parameter(torch.zeros(*sites, self.beta_hidden or width))
    self.beta_bias = nn.Parameter(torch.zeros(*sites))
    self.value_weight = nn.Parameter(torch.zeros(*sites, rows, width))
    if self.value == "sigmoid":
      self.value_bias = nn.Parameter(torch.zeros(*sites, rows))
    if self.beta_hidden:
      self.beta_in = nn.Parameter(torch.zeros(*sites, width, self.beta_hidden))
    reads = self.num_layers, 1 if self.shared_compressor else self.num_sites
    if self.compressor == "channel":
      self.mix = nn.Parameter(torch.ones(*reads, rows, width))
      self.final_mix = nn.Parameter(torch.ones(rows, width))
    if self.compressor == "token":
      self.pool = nn.Parameter(torch.ones(*reads, rows))
      self.taps = nn.Parameter(torch.ones(*reads, taps, rows, width))
      self.final_pool = nn.Parameter(torch.ones(rows))
      self.final_taps = nn.Parameter(torch.ones(taps, rows, width))
    if self.embedding_expansion:
      self.expand = nn.Parameter(torch.ones(taps, rows, width))

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    """Returns X [B, R, T, D], copies or short convolutions of the embedding, and past tokens."""
    past = PastTokens(position_ids, cache, self.num_layers, self.kernel_size)
    x = x[:, None]
    if not self.embedding_expansion:
      return x.expand(-1, self.value_width, -1, -1), past
    shifts = past.shifts(x, 0)
    terms = [taps[:, None].float() * y for taps, y in zip(self.expand, shifts, strict=True)]
    return sum(terms).to(x.dtype), past

  def compress(self, state: Any, number: int, mix: Tensor, taps: Tensor | None) -> Tensor:
    """Returns the read of X [B, T, D]; each number has past tokens of its own."""
    x, past = state
    if taps is None:
      return (mix[:, None].float() * x.float()).sum(1).to(x.dtype)
    filters = mix.float()[:, None] * taps.float()
    shifts = zip(filters, past.shifts(x, number), strict=True)
    return sum((rows[:, None] * y.float()).sum(1) for rows, y in shifts).to(x.dtype)

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    row = 0 if self.shared_compressor else site
    number = layer * self.num_sites + site + 1
    if self.compressor == "none":
      x = state[0][:, 0]
    elif self.compressor == "channel":
      x = self.compress(state, number, self.mix[layer, row], None)
    else:
      x = self.compress(state, number, self.pool[layer, row], self.taps[layer, row])
    return {"x": x}, x

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Tensor):
    x, past = state
    wide, context, direction = x.float(), normed["x"].float(), out.float()
    hidden = context
    if self.beta_hidden:
      hidden = (context @ self.beta_in[layer, site].float()).tanh()
    logit = (hidden * self.beta_weight[layer, site].float()).sum(-1)
    beta = 2 * (logit + self.beta_bias[layer, site].float()).sigmoid()
    weight = self.value_weight[layer, site].float()
    if self.value == "linear":
      value = context @ weight.T
    else:
      value = 4 * (tape.float() @ weight.T + self.value_bias[layer, site].float()).sigmoid()
    square = direction.pow(2).sum(-1, keepdim=True)
    k = (direction * torch.rsqrt(square + self.eps**2))[:, None]
    held = (k * wide).sum(-1, keepdim=True)
    change = beta[:, None, :, None] * (value.transpose(1, 2)[..., None] - held) * k
    return (wide + change).to(x.dtype), past

  def final(self, state: Any) -> Tensor:
    number = self.num_layers * self.num_sites + 1
    if self.compressor == "none":
      return state[0][:, 0]
    if self.compressor == "channel":
      return self.compress(state, number, self.final_mix, None)
    return self.compress(state, number, self.final_pool, self.final_taps)
