"""The branches of the layers of a decoder whose residual path is NAME_."""

import copy
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration import ResjaxConfig


class RMSNorm(nn.Module):
  """x / sqrt(mean(x²) + eps) ⊙ weight, computed in float32."""

  def __init__(self, width: int, eps: float):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(width))
    self.eps = eps

  def forward(self, x: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
    return (wide * self.weight.float()).to(x.dtype)


def make_norm(config: ResjaxConfig) -> nn.Module:
  """Returns a norm over the width of the model."""
  if config.norm_type == "rmsnorm":
    return RMSNorm(config.hidden_size, config.norm_eps)
  return nn.LayerNorm(config.hidden_size, config.norm_eps, bias=config.norm_bias)


class RotaryEmbedding(nn.Module):
  """Cosines and sines [B, 1, T, pairs] of position · frequency times a gain, for each rotation."""

  def __init__(self, config: ResjaxConfig):
    super().__init__()
    self.gains, self.frequencies = config.rope_gains, config.rope_frequencies
    self.register_buffer("inv_freq", torch.tensor(self.frequencies), persistent=False)
    #: if longrope
    self.short_lengths = config.rope_short_lengths
    #: end

  def forward(self, position_ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    #: if longrope
    rows, last = self.inv_freq.float(), position_ids.max()
    pairs = zip(self.short_lengths, rows, strict=True)
    rows = [torch.where(last < n, short, long) for n, (short, long) in pairs]
    #: else
    rows = self.inv_freq.float()
    #: end
    angles = [position_ids[:, None, :, None].float() * row for row in rows]
    return [(gain * a.cos(), gain * a.sin()) for gain, a in zip(self.gains, angles, strict=True)]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
  """Rotates the pairs (x_i, x_{i + pairs}) of every head of x [B, H, T, C] by their angles."""
  pairs = cos.shape[-1]
  first, second, rest = x.float().split([pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
  turned = (first * cos - second * sin, second * cos + first * sin, rest)
  return torch.cat(turned, dim=-1).to(x.dtype)


def eager_attention(
  module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
  scaling: float, dropout: float = 0.0, softcap: float | None = None, **kwargs,
) -> tuple[Tensor, Tensor]:  # fmt: skip
  """Returns the output [B, T, H, C] of attention with materialised scores, and its weights."""
  key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
  scores = torch.matmul(query, key.transpose(2, 3)).float() * scaling
  if softcap is not None:
    scores = softcap * torch.tanh(scores / softcap)
  if attention_mask is not None:
    scores = scores + attention_mask
  weights = scores.softmax(dim=-1).to(value.dtype)
  return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


# What the cache is called among arguments and outputs; transformers 5.24 has another name for it.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class Attention(nn.Module):
  """Causal attention; a transformers function that `attn_implementation` names computes it."""

  def __init__(self, config: ResjaxConfig, layer_idx: int):
    super().__init__()
    self.config, self.layer_idx, self.is_causal = config, layer_idx, True
    self.head_dim, self.scaling = config.head_dim, config.attention_scaling
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    self.num_key_value_groups = heads // kv_heads
    #: if windows
    window = config.layer_windows[layer_idx]
    #: else
    window = config.sliding_window if "sliding" in config.layer_types[layer_idx] else None
    #: end
    limits = {"softcap": config.attn_logit_softcapping, "sliding_window": window}
    self.limits = {name: limit for name, limit in limits.items() if limit}
    width, bias = config.hidden_size, config.attention_bias
    size, kv_size = heads * self.head_dim, kv_heads * self.head_dim
    self.q_proj = nn.Linear(width, size, bias=bias)
    self.k_proj = nn.Linear(width, kv_size, bias=bias)
    self.v_proj = nn.Linear(width, kv_size, bias=bias)
    self.o_proj = nn.Linear(size, width, bias=config.attention_out_bias)
    widths = {"head": (self.head_dim, self.head_dim), "heads": (size, kv_size)}.get(config.qk_norm)
    if widths is not None:
      self.q_norm, self.k_norm = (RMSNorm(width, config.norm_eps) for width in widths)

  def forward(
    self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor] | None = None,
    attention_mask: Tensor | None = None, **kwargs,
  ) -> Tensor:  # fmt: skip
    cache = kwargs.pop(CACHE, None)
    query, key = self.q_proj(hidden_states), self.k_proj(hidden_states)
    value = self.v_proj(hidden_states)
    #: if values
    mix = partial(kwargs.pop("mix_values"), self.layer_idx, hidden_states)
    heads = self.mixed(mix, cache, *self.heads(position_embeddings, None, query, key, value))
    #: else
    heads = self.heads(position_embeddings, cache, query, key, value)
    #: end
    run = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
    out, _ = run(self, *heads, attention_mask, scaling=self.scaling, **self.limits, **kwargs)
    return self.o_proj(out.reshape(query.shape))

  def heads(self, angles: tuple | None, cache: Cache | None, *qkv: Tensor) -> tuple[Tensor, ...]:
    """Returns normalised and rotated heads [B, H, T, C], with heads of earlier tokens."""
    query, key, value = qkv
    if self.config.qk_norm == "heads":
      query, key = self.q_norm(query), self.k_norm(key)
    query, key, value = (x.unflatten(-1, (-1, self.head_dim)) for x in (query, key, value))
    if self.config.qk_norm == "head":
      query, key = self.q_norm(query), self.k_norm(key)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    if angles is not None:
      query, key = rotate(query, *angles), rotate(key, *angles)
    if cache is not None:
      key, value = cache.update(key, value, self.layer_idx)
    return query, key, value

  #: if values
  def mixed(self, mix: Callable, cache: Cache | None, *heads: Tensor) -> tuple[Tensor, ...]:
    """Returns heads with mixed values, and with heads of earlier tokens."""
    query, key, value = heads
    value = mix(query, key, value)
    if cache is not None:
      key, value = cache.update(key, value, self.layer_idx)
    return query, key, value

  #: end


class MLP(nn.Module):
  """down(act(up x))."""

  def __init__(self, config: ResjaxConfig, inner: int):
    super().__init__()
    sizes, bias = (config.hidden_size, inner), config.mlp_bias
    self.act = ACT2FN[config.hidden_act]
    self.up_proj = nn.Linear(*sizes, bias=bias)
    self.down_proj = nn.Linear(*sizes[::-1], bias=bias)
    self.gate_proj = nn.Linear(*sizes, bias=bias) if config.mlp_gated else None

  def forward(self, x: Tensor) -> Tensor:
    return self.down_proj(self.act(self.up_proj(x)))


class GatedMLP(MLP):
  """down(act(gate x) ⊙ up x)."""

  def forward(self, x: Tensor) -> Tensor:
    return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


def make_mlp(config: ResjaxConfig, inner: int) -> MLP:
  """Returns an MLP of this inner width."""
  return (GatedMLP if config.mlp_gated else MLP)(config, inner)


#: if experts
class Router(nn.Module):
  """Chooses k experts for each token by scores softmax(x W) or sigmoid(x W), in float32."""

  def __init__(self, config: ResjaxConfig):
    super().__init__()
    self.config = config
    self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))
    if config.selection_bias:
      self.e_score_correction_bias = nn.Parameter(torch.zeros(config.num_experts))

  def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the chosen experts [n, k] and their weights, given tokens [n, D]."""
    config, logits = self.config, functional.linear(x.float(), self.weight.float())
    scores = logits.softmax(-1) if config.scoring_func == "softmax" else logits.sigmoid()
    ranked = scores + self.e_score_correction_bias.float() if config.selection_bias else scores
    chosen = ranked.topk(config.num_experts_per_tok, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if config.norm_topk_prob:
      weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, config.routed_scaling_factor * weights


class Experts(nn.ModuleList):
  """Σ_e w_e MLP_e(x) over the chosen experts of each token; servers have kernels for its place."""

  def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros_like(x, dtype=torch.float32)
    for number, expert in enumerate(self):
      tokens, places = torch.where(chosen == number)
      made = weights[tokens, places, None] * expert(x[tokens]).float()
      out = out.index_add(0, tokens, made)
    return out.to(x.dtype)


class MoE(nn.Module):
  """A mixture of experts, and an MLP of all tokens beside it."""

  def __init__(self, config: ResjaxConfig):
    super().__init__()
    inner, shared = config.moe_intermediate_size, config.shared_intermediate_size
    self.gate = Router(config)
    self.experts = Experts(make_mlp(config, inner) for _ in range(config.num_experts))
    self.shared_mlp = make_mlp(config, shared) if shared else None

  def forward(self, x: Tensor) -> Tensor:
    tokens = x.flatten(0, -2)
    out = self.experts(tokens, *self.gate(tokens)).view_as(x)
    return out if self.shared_mlp is None else out + self.shared_mlp(x)


#: end
#: if views
class ViewAttention(Attention):
  """Attention whose queries, keys and values are made of different inputs."""

  def forward(self, query_input: Tensor, key_input: Tensor, value_input: Tensor, **kwargs):
    query, key, value = self.q_proj(query_input), self.k_proj(key_input), self.v_proj(value_input)
    #: if values
    mix = partial(kwargs.pop("mix_values"), self.layer_idx, value_input)
    past = kwargs.pop(CACHE, None)
    #: end
    given = [kwargs.pop(name, None) for name in ("position_embeddings", CACHE)]
    given += [query, key, value]
    heads, mask = self.heads(*given), kwargs.pop("attention_mask", None)
    #: if values
    heads = self.mixed(mix, past, *heads)
    #: end
    run = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
    out, _ = run(self, *heads, mask, scaling=self.scaling, **self.limits, **kwargs)
    return self.o_proj(out.reshape(query.shape))


#: end
#: if values
class ValueMixing(nn.Module):
  """What attentions mix into their values, from earlier layers and the same token.

  With v₁ of the first layer: v ← λ₁ v + λ₂ v₁ (learned, fixed at ½), or v ← v + gate(x W) ⊙ v₁, a
  number per head, in the last layers. Then v ← v + λ (Σ_j a_j v_j + a v − v) over some earlier
  layers, by a softmax of q̄ · k_j and q̄ · k, q̄ the mean query of the heads that share a key.
  """

  def __init__(self, config: ResjaxConfig):
    super().__init__()
    self.config, self.num_layers = config, config.num_hidden_layers
    gate = config.gated_layers, config.hidden_size, config.num_key_value_heads
    if config.value_residual == "learned" and self.num_layers > 1:
      self.weights = nn.Parameter(torch.ones(self.num_layers - 1, 2))
    if config.gated_layers:
      self.gate = nn.Parameter(torch.zeros(*gate))
    if config.value_share:
      self.share = nn.Parameter(torch.zeros(self.num_layers - 1))

  def forward(
    self, seen: dict, layer: int, x: Tensor, query: Tensor, key: Tensor, value: Tensor
  ) -> Tensor:
    """Returns values [B, K, T, C]; seen holds keys and values of the layers before, by layer.

    They are made of the normalised x [B, T, D]; queries [B, H, T, C] and keys are rotated.
    """
    mixed = value.float()
    if layer:
      mixed = self.with_first(mixed, seen[0][1].float(), layer, x)
    if self.config.value_sources[layer]:
      sources = [seen[earlier] for earlier in self.config.value_sources[layer]]
      mixed = self.over_depth(mixed, sources, layer, query, key)
    seen[layer] = key, mixed.to(value.dtype)
    return seen[layer][1]

  def with_first(self, value: Tensor, first: Tensor, layer: int, x: Tensor) -> Tensor:
    kind, row = self.config.value_residual, layer - (self.num_layers - self.config.gated_layers)
    if kind in ("learned", "fixed"):
      own, other = self.weights[layer - 1].float() if kind == "learned" else (0.5, 0.5)
      return own * value + other * first
    if kind == "none" or row < 0:
      return value
    logits = (x @ self.gate[row].to(x.dtype)).float()
    return value + self.gated(logits).transpose(1, 2)[..., None] * first

  def gated(self, logits: Tensor) -> Tensor:
    """Returns the gate of logits [B, T, K]; a softmax is over the heads, and times K."""
    kind = self.config.value_gate
    if kind.startswith("softmax"):
      shares = logits.shape[-1] * logits.softmax(-1)
      return shares * logits.sigmoid() if kind == "softmax_sigmoid" else shares
    return logits if kind == "identity" else getattr(torch, kind)(logits)

  def over_depth(
    self, value: Tensor, sources: list, layer: int, query: Tensor, key: Tensor
  ) -> Tensor:
    groups = query.float().unflatten(1, (key.shape[1], -1)).mean(2) * self.config.attention_scaling
    keys = torch.stack([*(found for found, _ in sources), key]).float()
    values = torch.stack([*(found.float() for _, found in sources), value])
    weights = (groups * keys).sum(-1, keepdim=True).softmax(0)
    mixed = (weights * values).sum(0)
    if not self.config.value_share:
      return mixed
    return value + self.share[layer - 1].float() * (mixed - value)


#: end
#: if norm_gate
class NormGate(nn.Module):
  """y ← c y ⊙ σ(W_up silu(W_down y)) of a normalised y."""

  def __init__(self, config: ResjaxConfig):
    super().__init__()
    self.scale = config.norm_gate_scale
    self.down = nn.Linear(config.hidden_size, config.norm_gate_rank, bias=False)
    self.up = nn.Linear(config.norm_gate_rank, config.hidden_size, bias=False)

  def forward(self, y: Tensor) -> Tensor:
    gate = self.up(functional.silu(self.down(y))).float().sigmoid()
    return (self.scale * gate * y).to(y.dtype)


#: end
#: if short_swa
class ShortAttention(Attention):
  """Causal attention over the last few tokens, with heads of its own.

  With a cache their keys and values are kept in further layers of it, behind attention's.
  """

  def __init__(self, config: ResjaxConfig, layer_idx: int):
    own = copy.copy(config)
    own.num_attention_heads = own.num_key_value_heads = config.short_swa_heads
    own.head_dim = config.hidden_size // config.short_swa_heads
    own.attention_scaling, own.attn_logit_softcapping = config.short_swa_scaling, None
    own.rope_frequencies = config.short_swa_frequencies
    super().__init__(own, layer_idx)
    self.layer_idx, self.window = config.num_hidden_layers + layer_idx, config.short_swa_window
    self.rotary_emb = RotaryEmbedding(own) if own.rope_frequencies else None
    self.rotation = config.layer_ropes[layer_idx]

  def forward(self, x: Tensor, position_ids: Tensor, **kwargs) -> Tensor:
    angles = None if self.rotation is None else self.rotary_emb(position_ids)[self.rotation]
    cache = kwargs[CACHE] if self.window > 1 else None
    while cache is not None and len(cache.layers) <= self.layer_idx:
      cache.layers.append(DynamicSlidingWindowLayer(sliding_window=self.window))
    qkv = self.q_proj(x), self.k_proj(x), self.v_proj(x)
    query, key, value = self.heads(angles, cache, *qkv)
    length, known = x.shape[1], key.shape[2]
    places = torch.arange(known, device=x.device)
    back = places[known - length :, None] - places  # how many tokens a key is before a query
    seen = (back >= 0) & (back < self.window) & (back <= position_ids[..., None])
    mask = torch.where(seen, 0.0, -math.inf)[:, None]
    out, _ = eager_attention(self, query, key, value, mask, scaling=self.scaling)
    return self.o_proj(out.flatten(-2))


#: end
