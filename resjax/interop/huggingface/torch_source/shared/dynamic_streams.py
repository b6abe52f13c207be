from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from .streams import Streams


class DynamicStreams(Streams):
  """Streams whose p = σ(z_p) + ε, b = 2 σ(z_b) and M(z_M) every token computes from all of them.

  z = a ⊙ (RMS(vec H) φ) + bias, with φ [R D, K] and one number a each for p, b and M. The output is
  the sum or the mean of the streams, or `learned`: one more read, with parameters of its own; or a
  read by the p of the last site. The state is H and what the site before computed for p.
  """

  gate_eps = 0.0  # ε, in a system that does not have the option

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites, streams = (self.num_layers, self.num_sites), self.num_streams
    mixes = self.num_mix_logits()
    self.sizes = [streams, streams, *([mixes] if mixes else [])]
    count = sum(self.sizes)
    self.projection = nn.Parameter(torch.zeros(*sites, streams, self.width, count))
    self.bias = nn.Parameter(torch.zeros(*sites, count))
    self.scale = nn.Parameter(torch.ones(*sites, len(self.sizes)))
    if self.head == "learned":
      self.head_projection = nn.Parameter(torch.zeros(streams, self.width, streams))
      self.head_bias = nn.Parameter(torch.zeros(streams))
      self.head_scale = nn.Parameter(torch.ones(1))

  def num_mix_logits(self) -> int:
    """Returns how many logits decide M; without any it is the identity."""
    return 0

  def mix(self, logits: Tensor) -> Tensor:
    """Returns M [B, T, R, R] of its logits."""
    raise NotImplementedError

  def strength(self, logits: Tensor) -> Tensor:
    """Returns b [B, T, R] of its logits."""
    return 2 * logits.sigmoid()

  def projected(self, state: Tensor, projection: Tensor) -> Tensor:
    """Returns RMS(vec H) φ [B, T, K]."""
    whole = state.flatten(-2)
    normed = functional.rms_norm(whole, whole.shape[-1:], eps=self.eps)
    return normed @ projection.float().flatten(0, 1)

  def coefficients(self, state: Tensor, layer: int, site: int) -> tuple:
    """Returns p, M or None, and b."""
    products = self.projected(state, self.projection[layer, site]).split(self.sizes, -1)
    scales, biases = self.scale[layer, site].float(), self.bias[layer, site].float()
    parts = zip(scales, products, biases.split(self.sizes), strict=True)
    read, write, *mix = (scale * product + bias for scale, product, bias in parts)
    mixing = self.mix(mix[0]) if mix else None
    return read.sigmoid() + self.gate_eps, mixing, self.strength(write)

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None):
    streams = super().init(x, position_ids, cache)
    return streams, functional.one_hot(position_ids.new_zeros(x.shape[:-1]), self.num_streams)

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    streams, before = state
    shares, *tape = self.coefficients(streams.float(), layer, site)
    x = self.weighed(streams, before if self.read_site == "previous" else shares)
    return {"x": x}, (tape, shares)

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    of_write, shares = tape
    return super().write(state[0], layer, site, out, normed, of_write), shares

  def final(self, state: Any) -> Tensor:
    streams, shares = state
    if self.head in ("sum", "mean"):
      total = super().final(streams)
      return total / self.num_streams if self.head == "mean" else total
    if self.head == "learned":
      logits = self.head_scale.float() * self.projected(streams.float(), self.head_projection)
      shares = (logits + self.head_bias.float()).sigmoid() + self.gate_eps
    return self.weighed(streams, shares)
