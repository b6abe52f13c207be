from torch import Tensor


def low_rank(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
  """Returns x A B in float32, with A [D, r] and B [r, D]."""
  return x.float() @ down.float() @ up.float()
