"""What a decoder's config must fulfil, each in one line that names the setting."""

import functools
from typing import TYPE_CHECKING, Any

from resjax.base import check_types
from resjax.kernels.self_attention import IMPLEMENTATIONS
from resjax.models.depth import REMAT
from resjax.nn import GATES, MLPS, NORM_GATES, NORMS, SCALINGS, SCORES, Rope, RopeScaling

if TYPE_CHECKING:
  from resjax.models.config import DecoderConfig

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
_MOST_EXPERTS = 1 << 16
QK_NORMS = ("head", "heads")
BIASES = ("none", "qkv", "attention", "all")


def check(config: "DecoderConfig") -> None:
  """Fills in head_dim, makes tuples of lists, and raises a ValueError for a bad size or choice."""
  _choice(config, "positions", ("rope", "learned"))
  _choice(config, "norm", NORMS)
  _choice(config, "mlp", MLPS)
  _choice(config, "bias", BIASES)
  _choice(config, "value_residual", ("none", "learned", "fixed", "gated"))
  _choice(config, "value_mixing", ("none", "depth"))
  _choice(config, "qk_norm_over", QK_NORMS)
  _choice(config, "dtype", DTYPES)
  _choice(config, "attention", ("auto", *IMPLEMENTATIONS))
  _choice(config, "remat", REMAT)
  _choice(config, "depth", ("scan", "loop"))
  check_types(config, "config.model", _MOST)
  for name in ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "mlp_dim"):
    _check(config, name, getattr(config, name) >= 1, "at least 1")
  if config.head_dim == 0:
    divides = config.d_model % config.num_heads == 0
    _check(
      config, "d_model", divides, f"divisible by num_heads={config.num_heads}, or set head_dim"
    )
    object.__setattr__(config, "head_dim", config.d_model // config.num_heads)
  for name in ("head_dim", "norm_eps", "rope_theta"):
    _check(config, name, getattr(config, name) > 0, "positive")
  for name in ("init_std", "query_pre_attn_scalar", "attention_softcap", "logit_softcap"):
    _check(config, name, getattr(config, name) >= 0, "0 or positive")
  groups = config.num_heads % config.num_kv_heads == 0
  _check(config, "num_kv_heads", groups, f"a divisor of num_heads={config.num_heads}")
  _check_windows(config)
  _check_rope(config)
  _check_short_swa(config)
  _check_values(config)
  _check_mup(config)
  _check_moe(config)
  rank, most = config.norm_gate.rank, config.d_model
  _check(config, "norm_gate.rank", 0 <= rank <= most, f"in 0..{most}")
  gated = config.norm_gate.rank == 0 or config.pre_norm
  _check(config, "norm_gate.rank", gated, "0 with pre_norm=False, where no norm is before a branch")
  _check(
    config, "norm_gate.form", config.norm_gate.form in NORM_GATES, f"{' or '.join(NORM_GATES)}"
  )


def _check_windows(config: "DecoderConfig") -> None:
  windows = config.windows
  ok = isinstance(windows, tuple | list) and 0 < len(windows) <= config.num_layers
  sizes = ok and all(isinstance(size, int) and size >= 0 for size in windows)
  _check(config, "windows", sizes, f"1..num_layers={config.num_layers} integers, 0 or positive")
  object.__setattr__(config, "windows", tuple(windows))


def _check_rope(config: "DecoderConfig") -> None:
  ropes = config.ropes
  fits = isinstance(ropes, tuple | list) and len(ropes) <= config.num_layers
  _check(config, "ropes", fits, f"a tuple of at most num_layers={config.num_layers} sections")
  object.__setattr__(config, "ropes", tuple(ropes))
  if config.positions != "rope":
    return
  _check(config, "head_dim", config.head_dim % 2 == 0, "even with positions='rope'")
  _check_rotated_part(config, config.head_dim)
  _check_scaling(config, config.rope_scaling, "config.model.rope_scaling")
  for index, each in enumerate(config.ropes):
    check_types(each, where := f"config.model.ropes[{index}]")
    if each.theta < 0:
      raise ValueError(f"{where}.theta={each.theta} must be positive, or 0 for no rotation")
    _check_scaling(config, each.scaling, f"{where}.scaling")


def _check_scaling(config: "DecoderConfig", scaling: RopeScaling, where: str) -> None:
  kind, n = scaling.kind, scaling.original_max_positions
  _check_at(where, "kind", kind, kind in SCALINGS, f"one of {', '.join(SCALINGS)}")
  ordered = 0 < scaling.low_freq_factor < scaling.high_freq_factor
  high = scaling.high_freq_factor
  turns = 0 < scaling.beta_slow < scaling.beta_fast
  half = Rope(1.0, config.rope_fraction).width(config.head_dim) // 2
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


def _check_short_swa(config: "DecoderConfig") -> None:
  short = config.short_swa
  for name in ("window", "num_heads"):
    _check(config, f"short_swa.{name}", getattr(short, name) >= 0, "0 or positive")
  heads, parts = config.short_swa_heads, 2 if config.positions == "rope" else 1
  if short.window and config.d_model % (heads * parts):
    raise ValueError(
      f"config.model.short_swa.num_heads={heads} must divide d_model={config.d_model} into heads"
      + (" of even width with positions='rope'" if parts == 2 else "")
    )
  if short.window and parts == 2:
    _check_rotated_part(config, config.d_model // heads)
    kinds = {rope.scaling.kind for rope in config.layer_ropes if rope is not None}
    if "longrope" in kinds and config.d_model // heads != config.head_dim:
      raise ValueError(
        f"config.model.short_swa.num_heads={heads} must give heads of head_dim={config.head_dim}, "
        "for which rope_scaling.kind='longrope' has its factors"
      )


def _check_values(config: "DecoderConfig") -> None:
  gate = config.value_gate
  _choice(config, "value_gate.gate", tuple(GATES))
  for name, count in (
    ("value_gate.last_k", gate.last_k),
    ("depth_values.stride", config.depth_values.stride),
    ("depth_values.recent", config.depth_values.recent),
  ):
    _check(config, name, count >= 0, "0 or positive")
  dead = gate.gate == "relu" and gate.zero_init
  _check(config, "value_gate.zero_init", not dead, "False with gate='relu', which would never open")
  if config.value_residual == "gated" and config.mup.base_width:
    raise ValueError(
      "config.model.value_residual='gated' has no rule for widths; set "
      f"config.model.mup.base_width={config.mup.base_width} to 0"
    )


def _check_mup(config: "DecoderConfig") -> None:
  for name in ("base_width", "base_layers"):
    _check(config, f"mup.{name}", getattr(config.mup, name) >= 0, "0 or positive")
  if config.mup.base_layers and config.residual.name != "standard":
    raise ValueError(
      f"config.model.mup.base_layers={config.mup.base_layers} scales the branches of 'standard', "
      f"and config.model.residual.name is {config.residual.name!r}; set it to 0"
    )
  if config.mup.base_width:
    _check(config, "norm_gate.rank", config.norm_gate.rank == 0, "0 with mup.base_width")
    plain = config.query_pre_attn_scalar == 0
    _check(
      config, "query_pre_attn_scalar", plain, "0 with mup.base_width, where scores are q · k / C"
    )


def _check_moe(config: "DecoderConfig") -> None:
  moe = config.moe
  _choice(config, "moe.score", SCORES)
  experts, layers = moe.num_experts, config.num_layers
  few = f"in 1..{experts}, the config.model.moe.num_experts"
  most, shared = _MOST["mlp_dim"], _MOST_EXPERTS if experts else 0
  for name, ok, allowed in (
    ("num_experts", 0 <= experts <= _MOST_EXPERTS, f"in 0..{_MOST_EXPERTS}"),
    ("num_experts_per_tok", not experts or 1 <= moe.num_experts_per_tok <= experts, few),
    ("expert_dim", 0 <= moe.expert_dim <= most, f"0 (mlp_dim) or in 1..{most}"),
    ("num_shared_experts", 0 <= moe.num_shared_experts <= shared, f"in 0..{shared}"),
    ("selection_bias", experts > 0 or not moe.selection_bias, "False without num_experts"),
    ("routed_scaling_factor", moe.routed_scaling_factor > 0, "positive"),
    ("first_dense", 0 <= moe.first_dense < layers, f"in 0..{layers - 1}, below num_layers"),
    ("every", 1 <= moe.every <= layers, f"in 1..num_layers={layers}"),
  ):
    _check(config, f"moe.{name}", ok, allowed)
  if experts:
    _check(config, "moe.every", bool(config.routed_layers), "so small that any layer has experts")
    _check(config, "bias", config.bias != "all", "one without biases of MLPs: experts have none")
    learns = experts == 1 or moe.num_experts_per_tok > 1 or not moe.norm_topk_prob
    alone = "False with num_experts_per_tok=1, whose weight would be 1 for any router"
    _check(config, "moe.norm_topk_prob", learns, alone)
    no_rule = config.mup.base_width == 0
    _check(config, "mup.base_width", no_rule, "0 with moe.num_experts: it has no rule for routers")


def _check_rotated_part(config: "DecoderConfig", head_dim: int) -> None:
  width = Rope(config.rope_theta, config.rope_fraction).width(head_dim)
  even = 0 < config.rope_fraction <= 1 and width > 0 and width % 2 == 0
  _check(config, "rope_fraction", even, f"in (0, 1] and rotate an even part of {head_dim}")


def _check(config: "DecoderConfig", name: str, ok: bool, allowed: str) -> None:
  if not ok:
    value = functools.reduce(getattr, name.split("."), config)
    raise ValueError(f"config.model.{name}={value!r} must be {allowed}")


def _choice(config: "DecoderConfig", name: str, allowed: tuple[str, ...]) -> None:
  value = functools.reduce(getattr, name.split("."), config)
  _check(config, name, value in allowed, f"one of {', '.join(allowed)}")


def _check_at(where: str, name: str, value: Any, ok: bool, allowed: str) -> None:
  if not ok:
    raise ValueError(f"{where}.{name}={value!r} must be {allowed}")
