import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from .base import ResidualBase


def inverse_rms(x: Tensor, eps: float) -> Tensor:
  """Returns 1 / sqrt(mean(x²) + eps) over the last axis of x, which is float32."""
  return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class DepthReads(ResidualBase):
  """h = Σ_n a_n v_n over sources v_n, a = softmax_n(c q · k_n / τ), by heads of channels.

  Keys k are γ ⊙ RMS(v), RMS(v) or v, of all channels or of the last ones; c is 1, 1/√(channels of a
  key) or learned. Weights may be sigmoids, or a softmax of learned numbers; values may be RMS(v). A
  dynamic query adds W RMS(z) to q, with the newest source z.
  """

  # What options are in a system that does not have them.
  window, value_norm, key_norm, key_rank = 0, False, "gain", 0
  scale, temperature, weights, dynamic_query, views = "one", 1.0, "softmax", False, "x"

  def __init__(self, config: ResjaxConfig):
    super().__init__(config)
    self.own_views = {"x": "", "qk_v": "v", "qkv": "kv"}[self.views]
    self.key_width = self.key_rank or self.width

  def shapes(self) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a read's parameters."""
    if self.weights == "static":
      return {"logit": (self.num_layers * self.num_sites + 1,)}
    width = self.key_width
    gain = {"key_scale": (width,)} if self.key_norm == "gain" else {}
    scale = {"log_scale": ()} if self.scale == "learned" else {}
    dynamic = {"query_weight": (self.width, width)} if self.dynamic_query else {}
    return {"query": (width,), **gain, **scale, **dynamic}

  def add_reads(self, prefix: str, *lead: int, without: tuple[str, ...] = ()) -> None:
    """Adds the parameters of reads, stacked over leading axes."""
    for name, shape in self.shapes().items():
      if name not in without:
        setattr(self, prefix + name, nn.Parameter(torch.zeros((*lead, *shape))))

  def reader(self, layer: int, site: int, view: str = "x") -> dict[str, Tensor]:
    """Returns the parameters of the read that gives a site a view."""
    prefix, row = ("", site) if view == "x" else ("view_", self.own_views.index(view))
    rows = {name: getattr(self, prefix + name, None) for name in self.shapes()}
    return {name: rows[layer, row] for name, rows in rows.items() if rows is not None}

  def final_reader(self) -> dict[str, Tensor]:
    """Returns the parameters of the read of the output."""
    return {name: getattr(self, f"final_{name}", None) for name in self.shapes()}

  def view_names(self, site: int) -> tuple[str, ...]:
    return ("x", *self.own_views) if site == 0 else ("x",)

  def attend(self, reader: dict, sources: list[Tensor], z: Tensor | None = None) -> Tensor:
    """Returns h of the sources; z is the newest one, where it is not the last of those read."""
    dtype, z = sources[0].dtype, sources[-1] if z is None else z
    first = max(1, len(sources) - self.window) if self.window else 1
    read = [0, *range(first, len(sources))]
    values = torch.stack([sources[n] for n in read]).float()
    if self.weights == "static":
      weights = reader["logit"][read].float().softmax(0).reshape(-1, 1, 1, 1)
    else:
      logits = self.logits(reader, values, z.float())
      weights = logits.sigmoid() if self.weights == "sigmoid" else logits.softmax(0)
    if self.value_norm and len(read) > 1:
      weights = weights * inverse_rms(values, self.eps)
    heads = values.unflatten(-1, (self.num_heads, -1))
    return (weights[..., None] * heads).sum(0).flatten(-2).to(dtype)

  def logits(self, reader: dict, values: Tensor, z: Tensor) -> Tensor:
    """Returns c q · k by head [n, B, T, H]."""
    query = reader["query"].float()
    if self.dynamic_query:
      query = query + (z * inverse_rms(z, self.eps)) @ reader["query_weight"].float()
    query = query / self.temperature
    if self.scale == "rsqrt":
      query = query * (self.key_width // self.num_heads) ** -0.5
    if self.scale == "learned":
      query = query * reader["log_scale"].float().exp()
    if self.key_norm == "gain":
      query = query * reader["key_scale"].float()
    keys = values[..., self.width - self.key_width :]
    logits = (keys * query).unflatten(-1, (self.num_heads, -1)).sum(-1)
    return logits if self.key_norm == "none" else logits * inverse_rms(keys, self.eps)
