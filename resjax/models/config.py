"""The description of a decoder: frozen dataclasses that check themselves."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from resjax.base import check_types
from resjax.kernels.self_attention import IMPLEMENTATIONS, Scores
from resjax.models.depth import REMAT
from resjax.nn import GATES, MLPS, NORM_GATES, NORMS, SCALINGS, Rope, RopeScaling

DTYPES = ("bfloat16", "float16", "float32", "float64")
# Sizes beyond these are mistakes, and would take hours or all memory before they are noticed.
MOST_LAYERS = 4096
_MOST = {
  "vocab_size": 1 << 28,
  "num_layers": MOST_LAYERS,
  "d_model": 1 << 20,
  "num_heads": 1 << 16,
  "num_kv_heads": 1 << 16,
  "head_dim": 1 << 16,
  "mlp_dim": 1 << 24,
}
QK_NORMS = ("head", "heads")
BIASES = ("none", "qkv", "attention", "all")


@dataclasses.dataclass(frozen=True)
class ResidualConfig:
  """The choice of a combinator and its options.

  Attributes:
    name: its name in `resjax.combinators`.
    options: the arguments of its class that are its own.
  """

  name: str = "standard"
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LayerRope:
  """The rotary embedding of a layer.

  Attributes:
    theta: the base of the wavelengths; 0: queries and keys are not rotated.
    scaling: how the wavelengths are stretched.
  """

  theta: float = 10000.0
  scaling: RopeScaling = dataclasses.field(default_factory=RopeScaling)


@dataclasses.dataclass(frozen=True)
class ShortSWAConfig:
  """The site `short_swa` before the attention: causal attention over a short window.

  Attributes:
    window: how many of the last tokens a token sees; 0: there is no such site.
    num_heads: the number of query heads and of key heads; 0: as many as the attention has.
    zero_init: whether the output projection starts as zero.
  """

  window: int = 0
  num_heads: int = 0
  zero_init: bool = True


@dataclasses.dataclass(frozen=True)
class NormGateConfig:
  """The gate behind the norms before branches, see `resjax.nn.norm.NormGate`.

  Attributes:
    rank: its rank; 0: there is none.
    form: one of `resjax.nn.norm.NORM_GATES`.
  """

  rank: int = 0
  form: str = "neutral"


@dataclasses.dataclass(frozen=True)
class ValueGateConfig:
  """The gate of a value residual that depends on the token, `value_residual='gated'`.

  Attributes:
    gate: one of `resjax.nn.values.GATES`.
    last_k: how many of the last layers have it; 0: all but the first.
    zero_init: whether its map starts as zero.
  """

  gate: str = "relu"
  last_k: int = 0
  zero_init: bool = False

  @property
  def starts_shut(self) -> bool:
    """Whether the gate is 0 at init."""
    return self.zero_init and self.gate in ("tanh", "identity")


@dataclasses.dataclass(frozen=True)
class DepthValuesConfig:
  """Which earlier layers `value_mixing='depth'` reads, and how the mix is initialised.

  Layer l mixes its values with those of the layers j < l with j % stride = 0 or j >= l - recent.

  Attributes:
    stride: see above; 0: half of the layers.
    recent: see above.
    zero_init: whether a learned factor per layer, 0 at init, stands before the mix.
  """

  stride: int = 0
  recent: int = 0
  zero_init: bool = False


@dataclasses.dataclass(frozen=True)
class MupConfig:
  """The sizes of a model whose learning rates also suit this one: muP for width, CompleteP's depth.

  With m = d_model / base_width, matrices of layers start m^-1/2 times as large and learn at 1/m of
  the rate, with m times the decay; logits are divided by m, and scores are q · k / C. Embeddings,
  norms, biases and the combinator stay as they are. With ℓ = num_layers / base_layers, the output
  of a branch is divided by ℓ. Adam's eps is divided by m ℓ for all parameters of the layers.

  Heads or their width, and mlp_dim, are meant to grow as d_model does.

  Attributes:
    base_width: the other d_model; 0: nothing depends on the width.
    base_layers: the other num_layers; 0: nothing depends on the depth. It changes what the residual
      path is, so that `standard` alone can have it. Outputs then start by base_layers where
      `scaled_output_init` would take num_layers.

  Source: Tensor Programs V, arXiv 2203.03466, table 8; CompleteP, arXiv 2505.01618.
  """

  base_width: int = 0
  base_layers: int = 0


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """The sizes and choices of a decoder; configs/base.py says what each field means.

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
  rope_fraction: float
  rope_scaling: RopeScaling
  norm: str
  norm_eps: float
  post_norm: bool
  mlp: str
  bias: str
  parallel: bool
  qk_norm: bool
  query_pre_attn_scalar: float
  windows: tuple[int, ...]
  attention_softcap: float
  logit_softcap: float
  embed_scale: bool
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
  # Records of earlier runs do not have these settings.
  mup: MupConfig = MupConfig()
  norm_gate: NormGateConfig = NormGateConfig()
  value_gate: ValueGateConfig = ValueGateConfig()
  value_mixing: str = "none"
  depth_values: DepthValuesConfig = DepthValuesConfig()
  ropes: tuple[LayerRope, ...] = ()
  pre_norm: bool = True
  qk_norm_over: str = "head"
  norm_bias: bool = False

  def __post_init__(self) -> None:
    """Fills in head_dim and checks every field."""
    self._choice("positions", ("rope", "learned"))
    self._choice("norm", NORMS)
    self._choice("mlp", MLPS)
    self._choice("bias", BIASES)
    self._choice("value_residual", ("none", "learned", "fixed", "gated"))
    self._choice("value_mixing", ("none", "depth"))
    self._choice("qk_norm_over", QK_NORMS)
    self._choice("dtype", DTYPES)
    self._choice("attention", ("auto", *IMPLEMENTATIONS))
    self._choice("remat", REMAT)
    self._choice("depth", ("scan", "loop"))
    check_types(self, "config.model", _MOST)
    for name in ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "mlp_dim"):
      self._check(name, getattr(self, name) >= 1, "at least 1")
    if self.head_dim == 0:
      divides = self.d_model % self.num_heads == 0
      self._check("d_model", divides, f"divisible by num_heads={self.num_heads}, or set head_dim")
      object.__setattr__(self, "head_dim", self.d_model // self.num_heads)
    for name in ("head_dim", "norm_eps", "rope_theta"):
      self._check(name, getattr(self, name) > 0, "positive")
    for name in ("init_std", "query_pre_attn_scalar", "attention_softcap", "logit_softcap"):
      self._check(name, getattr(self, name) >= 0, "0 or positive")
    groups = self.num_heads % self.num_kv_heads == 0
    self._check("num_kv_heads", groups, f"a divisor of num_heads={self.num_heads}")
    self._check_windows()
    self._check_rope()
    self._check_short_swa()
    self._check_values()
    self._check_mup()
    rank, most = self.norm_gate.rank, self.d_model
    self._check("norm_gate.rank", 0 <= rank <= most, f"in 0..{most}")
    gated = self.norm_gate.rank == 0 or self.pre_norm
    self._check("norm_gate.rank", gated, "0 with pre_norm=False, where no norm is before a branch")
    self._check("norm_gate.form", self.norm_gate.form in NORM_GATES, f"{' or '.join(NORM_GATES)}")

  def _check_windows(self) -> None:
    windows = self.windows
    ok = isinstance(windows, tuple | list) and 0 < len(windows) <= self.num_layers
    sizes = ok and all(isinstance(size, int) and size >= 0 for size in windows)
    self._check("windows", sizes, f"1..num_layers={self.num_layers} integers, 0 or positive")
    object.__setattr__(self, "windows", tuple(windows))

  def _check_rope(self) -> None:
    ropes = self.ropes
    fits = isinstance(ropes, tuple | list) and len(ropes) <= self.num_layers
    self._check("ropes", fits, f"a tuple of at most num_layers={self.num_layers} sections")
    object.__setattr__(self, "ropes", tuple(ropes))
    if self.positions != "rope":
      return
    self._check("head_dim", self.head_dim % 2 == 0, "even with positions='rope'")
    self._check_rotated_part(self.head_dim)
    self._check_scaling(self.rope_scaling, "config.model.rope_scaling")
    for index, each in enumerate(self.ropes):
      check_types(each, where := f"config.model.ropes[{index}]")
      if each.theta < 0:
        raise ValueError(f"{where}.theta={each.theta} must be positive, or 0 for no rotation")
      self._check_scaling(each.scaling, f"{where}.scaling")

  def _check_scaling(self, scaling: RopeScaling, where: str) -> None:
    kind, n = scaling.kind, scaling.original_max_positions
    _check_at(where, "kind", kind, kind in SCALINGS, f"one of {', '.join(SCALINGS)}")
    ordered = 0 < scaling.low_freq_factor < scaling.high_freq_factor
    high = scaling.high_freq_factor
    turns = 0 < scaling.beta_slow < scaling.beta_fast
    half = Rope(1.0, self.rope_fraction).width(self.head_dim) // 2
    needs_n = kind in ("llama3", "yarn", "longrope")
    needed = n > (kind == "longrope") if needs_n else True  # whose formula divides by ln n
    lists = {
      f"{name}_factors": kind != "longrope" or (len(factors) == half and min(factors) > 0)
      for name, factors in (("short", scaling.short_factors), ("long", scaling.long_factors))
    }
    for name, ok, allowed in (
      ("factor", scaling.factor > 0, "positive"),
      ("low_freq_factor", ordered, f"between 0 and high_freq_factor={high}"),
      ("original_max_positions", needed, f"positive with kind={kind!r}"),
      ("beta_slow", turns, f"between 0 and beta_fast={scaling.beta_fast}"),
      ("attention_factor", scaling.attention_factor >= 0, "0 or positive"),
      *((name, ok, f"{half} positive numbers with {kind!r}") for name, ok in lists.items()),
    ):
      _check_at(where, name, getattr(scaling, name), ok, allowed)

  def _check_short_swa(self) -> None:
    short = self.short_swa
    for name in ("window", "num_heads"):
      self._check(f"short_swa.{name}", getattr(short, name) >= 0, "0 or positive")
    heads, parts = self.short_swa_heads, 2 if self.positions == "rope" else 1
    if short.window and self.d_model % (heads * parts):
      raise ValueError(
        f"config.model.short_swa.num_heads={heads} must divide d_model={self.d_model} into heads"
        + (" of even width with positions='rope'" if parts == 2 else "")
      )
    if short.window and parts == 2:
      self._check_rotated_part(self.d_model // heads)
      kinds = {rope.scaling.kind for rope in self.layer_ropes if rope is not None}
      if "longrope" in kinds and self.d_model // heads != self.head_dim:
        raise ValueError(
          f"config.model.short_swa.num_heads={heads} must give heads of head_dim={self.head_dim}, "
          "for which rope_scaling.kind='longrope' has its factors"
        )

  def _check_values(self) -> None:
    gate = self.value_gate
    self._choice("value_gate.gate", tuple(GATES))
    for name, count in (
      ("value_gate.last_k", gate.last_k),
      ("depth_values.stride", self.depth_values.stride),
      ("depth_values.recent", self.depth_values.recent),
    ):
      self._check(name, count >= 0, "0 or positive")
    dead = gate.gate == "relu" and gate.zero_init
    self._check("value_gate.zero_init", not dead, "False with gate='relu', which would never open")
    if self.value_residual == "gated" and self.mup.base_width:
      raise ValueError(
        "config.model.value_residual='gated' has no rule for widths; set "
        f"config.model.mup.base_width={self.mup.base_width} to 0"
      )

  def _check_mup(self) -> None:
    for name in ("base_width", "base_layers"):
      self._check(f"mup.{name}", getattr(self.mup, name) >= 0, "0 or positive")
    if self.mup.base_layers and self.residual.name != "standard":
      raise ValueError(
        f"config.model.mup.base_layers={self.mup.base_layers} scales the branches of 'standard', "
        f"and config.model.residual.name is {self.residual.name!r}; set it to 0"
      )
    if self.mup.base_width:
      self._check("norm_gate.rank", self.norm_gate.rank == 0, "0 with mup.base_width")
      plain = self.query_pre_attn_scalar == 0
      self._check(
        "query_pre_attn_scalar", plain, "0 with mup.base_width, where scores are q · k / C"
      )

  def _check_rotated_part(self, head_dim: int) -> None:
    width = Rope(self.rope_theta, self.rope_fraction).width(head_dim)
    even = 0 < self.rope_fraction <= 1 and width > 0 and width % 2 == 0
    self._check("rope_fraction", even, f"in (0, 1] and rotate an even part of {head_dim}")

  def _check(self, name: str, ok: bool, allowed: str) -> None:
    if not ok:
      value = functools.reduce(getattr, name.split("."), self)
      raise ValueError(f"config.model.{name}={value!r} must be {allowed}")

  def _choice(self, name: str, allowed: tuple[str, ...]) -> None:
    value = functools.reduce(getattr, name.split("."), self)
    self._check(name, value in allowed, f"one of {', '.join(allowed)}")

  @property
  def sites(self) -> tuple[str, ...]:
    """The sites of a layer, in order."""
    rest = () if self.parallel else ("mlp",)
    return (*("short_swa",) * (self.short_swa.window > 0), self.attention_site, *rest)

  @property
  def attention_site(self) -> str:
    """The site of the attention."""
    return "parallel" if self.parallel else "attention"

  @property
  def layer_windows(self) -> tuple[int, ...]:
    """The window of the attention of each layer, 0 for none."""
    return tuple(self.windows[i % len(self.windows)] for i in range(self.num_layers))

  @property
  def num_gated_layers(self) -> int:
    """How many of the last layers have the gate of a value residual."""
    later = self.num_layers - 1
    return min(self.value_gate.last_k or later, later) if self.value_residual == "gated" else 0

  @property
  def value_sources(self) -> tuple[tuple[int, ...], ...]:
    """The earlier layers with which each layer mixes its values."""
    if self.value_mixing == "none":
      return ((),) * self.num_layers
    stride = self.depth_values.stride or max(1, self.num_layers // 2)
    recent = self.depth_values.recent
    return tuple(
      tuple(j for j in range(layer) if j % stride == 0 or j >= layer - recent)
      for layer in range(self.num_layers)
    )

  @property
  def layer_ropes(self) -> tuple[Rope | None, ...]:
    """The rotary embedding of each layer; None: no rotation."""
    pattern = self.ropes or (LayerRope(self.rope_theta, self.rope_scaling),)
    rotates = self.positions == "rope"
    ropes = tuple(
      Rope(each.theta, self.rope_fraction, each.scaling) if rotates and each.theta else None
      for each in pattern
    )
    return tuple(ropes[i % len(ropes)] for i in range(self.num_layers))

  @property
  def short_lengths(self) -> tuple[int, ...]:
    """The different lengths up to which a document is short for a rotation (`longrope`)."""
    lengths = {rope.short_length for rope in self.layer_ropes if rope is not None}
    return tuple(sorted(lengths - {0}))

  @property
  def scores(self) -> Scores:
    """What the attention does with its scores."""
    squared = self.query_pre_attn_scalar or (self.head_dim**2 if self.mup.base_width else 0)
    return Scores(squared**-0.5 if squared else None, self.attention_softcap)

  @property
  def short_swa_scores(self) -> Scores:
    """What the attention over a short window does with its scores."""
    return Scores(self.short_swa_heads / self.d_model if self.mup.base_width else None)

  @property
  def short_swa_heads(self) -> int:
    """Heads of the attention over a short window; each is d_model / heads wide."""
    return self.short_swa.num_heads or self.num_heads

  @property
  def width_ratio(self) -> float:
    """How many times as wide as `mup.base_width` the decoder is; 1 without one."""
    return self.d_model / (self.mup.base_width or self.d_model)

  @property
  def depth_ratio(self) -> float:
    """How many times as many layers as `mup.base_layers` there are; 1 without one."""
    return self.num_layers / (self.mup.base_layers or self.num_layers)

  @property
  def matrix_std(self) -> float:
    """Standard deviation of the matrices of layers at init, without output projections."""
    return self.init_std * self.width_ratio**-0.5

  @property
  def output_std(self) -> float:
    """Standard deviation of output projections at init, `matrix_std` / √(2L) if scaled."""
    num_layers = self.mup.base_layers or self.num_layers
    return self.matrix_std * ((2 * num_layers) ** -0.5 if self.scaled_output_init else 1.0)


def _check_at(where: str, name: str, value: Any, ok: bool, allowed: str) -> None:
  if not ok:
    raise ValueError(f"{where}.{name}={value!r} must be {allowed}")
