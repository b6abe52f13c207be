from typing import Any

from torch import Tensor

from .stream import Stream


class AttenuatedStream(Stream):
  """x ← α x + f(x) at every site, or x ← α x + [layer(x) − x] once per layer (scope layer).

  Within such a layer the state has x + f(x), which later sites read, and α x + f(x).
  """

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    return {"x": state[0] if isinstance(state, tuple) else state}, None

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Any) -> Any:
    if self.scope == "sublayer":
      return self.attenuated(state, layer, site, out, normed)
    if site == 0:
      stream, attenuated = state + out, self.attenuated(state, layer, site, out, normed)
    else:
      stream, attenuated = state[0] + out, state[1] + out
    return attenuated if site == self.num_sites - 1 else (stream, attenuated)

  def attenuated(self, x: Tensor, layer: int, site: int, out: Tensor, normed: dict) -> Tensor:
    return (self.stream_factor(layer, site, normed) * x.float() + out.float()).to(x.dtype)
