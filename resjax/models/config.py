"""The shape of a decoder, checked."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resjax.kernels.self_attention import IMPLEMENTATIONS
from resjax.models.depth import REMAT
from resjax.nn.mlp import MLPS
from resjax.nn.norm import NORMS

DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclasses.dataclass(frozen=True)
class ResidualConfig:
  """A combinator by name, and its options."""

  name: str = "standard"
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ShortSWAConfig:
  """Causal attention over a short window, a site before the attention; window 0: no such site."""

  window: int = 0
  num_heads: int = 0
  zero_init: bool = True


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """Sizes and choices of a decoder; the meaning of each field stands in configs/base.py.

  Raises:
    ValueError: a size or choice that no decoder can have.
  """

  vocab_size: int
  max_positions: int
  num_layers: int
  d_model: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_dim: int
  positions: str
  rope_theta: float
  norm: str
  norm_eps: float
  mlp: str
  bias: bool
  qk_norm: bool
  value_residual: str
  short_swa: ShortSWAConfig
  tied_embeddings: bool
  init_std: float
  scaled_output_init: bool
  dtype: str
  attention: str
  remat: str
  depth: str
  residual: ResidualConfig

  def __post_init__(self):
    """Fills in head_dim and checks every field."""
    for name in ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "mlp_dim"):
      self._check(name, getattr(self, name) >= 1, "at least 1")
    self._choice("positions", ("rope", "learned"))
    self._choice("norm", NORMS)
    self._choice("mlp", MLPS)
    self._choice("value_residual", ("none", "learned", "fixed"))
    self._choice("dtype", DTYPES)
    self._choice("attention", ("auto", *IMPLEMENTATIONS))
    self._choice("remat", REMAT)
    self._choice("depth", ("scan", "loop"))
    if self.head_dim == 0:
      divides = self.d_model % self.num_heads == 0
      self._check("d_model", divides, f"divisible by num_heads={self.num_heads}, or set head_dim")
      object.__setattr__(self, "head_dim", self.d_model // self.num_heads)
    for name in ("head_dim", "norm_eps", "rope_theta"):
      self._check(name, getattr(self, name) > 0, "positive")
    self._check("init_std", self.init_std >= 0, "0 or positive")
    groups = self.num_heads % self.num_kv_heads == 0
    self._check("num_kv_heads", groups, f"a divisor of num_heads={self.num_heads}")
    even = self.positions != "rope" or self.head_dim % 2 == 0
    self._check("head_dim", even, "even with positions='rope'")
    self._check_short_swa()

  def _check_short_swa(self) -> None:
    short = self.short_swa
    for name in ("window", "num_heads"):
      if getattr(short, name) < 0:
        raise ValueError(
          f"config.model.short_swa.{name}={getattr(short, name)!r} must be 0 or positive"
        )
    heads, parts = self.short_swa_heads, 2 if self.positions == "rope" else 1
    if short.window and self.d_model % (heads * parts):
      raise ValueError(
        f"config.model.short_swa.num_heads={heads} must divide d_model={self.d_model} into heads"
        + (" of even width with positions='rope'" if parts == 2 else "")
      )

  def _check(self, name: str, ok: bool, allowed: str) -> None:
    if not ok:
      raise ValueError(f"config.model.{name}={getattr(self, name)!r} must be {allowed}")

  def _choice(self, name: str, allowed: tuple[str, ...]) -> None:
    self._check(name, getattr(self, name) in allowed, f"one of {', '.join(allowed)}")

  @property
  def sites(self) -> tuple[str, ...]:
    """The sites of a layer, in order."""
    return ("short_swa",) * (self.short_swa.window > 0) + ("attention", "mlp")

  @property
  def short_swa_heads(self) -> int:
    """Heads of the attention over a short window; each is d_model / heads wide."""
    return self.short_swa.num_heads or self.num_heads

  @property
  def output_std(self) -> float:
    """Standard deviation of output projections at init, init_std / √(2L) if scaled."""
    return self.init_std * ((2 * self.num_layers) ** -0.5 if self.scaled_output_init else 1.0)
