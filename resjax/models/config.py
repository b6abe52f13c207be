"""The description of a decoder: frozen dataclasses that check themselves."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resjax.kernels.self_attention import Scores
from resjax.models.config_checks import check
from resjax.nn import Rope, RopeScaling


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

  Layer l mixes its values with the values of layers j < l: j % stride = 0 or j >= l - recent.

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
class MoEConfig:
  """The mixture of experts that layers have in place of an MLP, see `resjax.nn.MoE`.

  Attributes:
    num_experts: the number of experts E; 0: every layer has an MLP.
    num_experts_per_tok: how many of them a token goes through, k.
    expert_dim: the inner width F of an expert; 0: mlp_dim.
    num_shared_experts: how many experts all tokens go through besides; they are one MLP.
    score: one of `resjax.nn.SCORES`.
    norm_topk_prob: whether the weights of a token's experts are divided by their sum.
    routed_scaling_factor: a factor on these weights.
    selection_bias: whether experts are chosen by score and bias, which balances their load.
    first_dense: how many of the first layers have an MLP of mlp_dim.
    every: layer l has a mixture if (l + 1) % every = 0, and all others an MLP.
  """

  num_experts: int = 0
  num_experts_per_tok: int = 2
  expert_dim: int = 0
  num_shared_experts: int = 0
  score: str = "softmax"
  norm_topk_prob: bool = True
  routed_scaling_factor: float = 1.0
  selection_bias: bool = False
  first_dense: int = 0
  every: int = 1


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
  moe: MoEConfig = MoEConfig()

  def __post_init__(self) -> None:
    """Fills in head_dim and checks every field."""
    check(self)

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
  def routed_layers(self) -> tuple[int, ...]:
    """The layers that have a mixture of experts in place of an MLP."""
    layers = range(self.moe.first_dense, self.num_layers) if self.moe.num_experts else ()
    return tuple(layer for layer in layers if (layer + 1) % self.moe.every == 0)

  @property
  def dense_layers(self) -> tuple[int, ...]:
    """The layers that have an MLP."""
    return tuple(sorted({*range(self.num_layers)} - {*self.routed_layers}))

  @property
  def expert_dim(self) -> int:
    """The inner width of an expert."""
    return self.moe.expert_dim or self.mlp_dim

  @property
  def mixes_values(self) -> bool:
    """Whether the attention of any layer mixes its values with the values of other layers."""
    return self.value_residual != "none" or self.value_mixing != "none"

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
