# options: window num_heads eps
import math

import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.entered import EnteredStream


class Residual(EnteredStream):
  """x ← x + W_O Σ_j softmax_j(q · k_j / √C) v_j before every layer, in heads of width C.

  q = W_Q RMS(x), k_j = W_K RMS(y_j) and v_j = W_V RMS(y_j), with the embedding y_0 and the streams
  y_j after layers, of which the last residual_window are read.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    heads = self.num_heads, self.width // self.num_heads
    for name in ("query", "key", "value"):
      setattr(self, name, nn.Parameter(torch.zeros(self.num_layers, self.width, *heads)))
    self.output = nn.Parameter(torch.zeros(self.num_layers, *heads, self.width))

  def keeps(self, layer: int) -> bool:
    return True

  def enter(self, x: Tensor, sources: list[Tensor], layer: int) -> Tensor:
    maps = (self.query, self.key, self.value, self.output)
    query, key, value, output = (weight[layer].float() for weight in maps)
    read = self.normed(torch.stack(sources[-self.window :]))
    q = torch.einsum("btd,dhc->bthc", self.normed(x), query)
    q = torch.einsum("bthc,dhc->bthd", q, key)  # on the side of the query, which is one
    logits = torch.einsum("bthd,nbtd->nbth", q, read) / math.sqrt(key.shape[-1])
    mixed = torch.einsum("nbth,nbtd->bthd", logits.softmax(0), read)
    v = torch.einsum("bthd,dhc->bthc", mixed, value)
    return x + torch.einsum("bthc,hcd->btd", v, output).to(x.dtype)

  def normed(self, x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
