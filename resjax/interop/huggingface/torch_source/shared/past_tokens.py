import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer


class PastTokens:
  """The tokens before a call that short convolutions over tokens need.

  With a cache they are kept in further layers of it, behind attention's, which hold the last
  taps − 1 tokens. Positions tell where a row of text begins: nothing before it is looked at.
  """

  def __init__(self, position_ids: Tensor, cache: Cache | None, num_layers: int, taps: int):
    self.positions, self.cache = position_ids, cache
    self.num_layers, self.taps = num_layers, taps

  def shifts(self, x: Tensor, number: int) -> list[Tensor]:
    """Returns x [B, R, T, D] of s tokens before, for every s < taps.

    Args:
      x: the tokens of this call.
      number: which of the convolutions this is; each has past tokens of its own.
    """
    known = x
    if self.cache is not None:
      while len(self.cache.layers) <= self.num_layers + number:
        self.cache.layers.append(DynamicSlidingWindowLayer(sliding_window=self.taps))
      known, _ = self.cache.layers[self.num_layers + number].update(x, x[..., :0])
    length, missing = x.shape[-2], self.taps - 1 - (known.shape[-2] - x.shape[-2])
    known = functional.pad(known, (0, 0, max(missing, 0), 0))
    end = known.shape[-2]
    shifted = [known[..., end - s - length : end - s, :] for s in range(self.taps)]
    inside = [(self.positions >= s)[:, None, :, None] for s in range(self.taps)]
    return [torch.where(ok, x, 0) for ok, x in zip(inside, shifted, strict=True)]
