"""A decoder whose residual path is NAME_, as resjax computes it.

Settings and modules have the names of Llama where Llama has them. `Residual` says what a branch
reads of the state that earlier branches have made, and what becomes of its output.
"""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import can_return_tuple

from .branches import (
  CACHE,
  Attention,
  MoE,
  NormGate,
  RotaryEmbedding,
  ShortAttention,
  ValueMixing,
  ViewAttention,
  make_mlp,
  make_norm,
)
from .configuration import ResjaxConfig
from .residual.standard import Residual


class DecoderLayer(GradientCheckpointingLayer):
  """The branches of a layer with their norms; what surrounds them is the `Residual`."""

  def __init__(self, config: ResjaxConfig, layer_idx: int):
    super().__init__()
    views = config.attention_views
    #: if views
    self.inputs = [view if view in views else "x" for view in "qkv"]
    self.self_attn = ViewAttention(config, layer_idx)
    #: else
    self.inputs = ["x"]
    self.self_attn = Attention(config, layer_idx)
    #: end
    #: if experts
    sparse = config.mlp_layer_types[layer_idx] == "sparse"
    self.mlp = MoE(config) if sparse else make_mlp(config, config.intermediate_size)
    #: else
    self.mlp = make_mlp(config, config.intermediate_size)
    #: end
    normed = views if config.pre_norm else []
    self.attention_norms = nn.ModuleDict({view: make_norm(config) for view in normed})
    self.mlp_norm = make_norm(config) if config.pre_norm else nn.Identity()
    self.attention_out_norm = make_norm(config) if config.post_norm else nn.Identity()
    self.mlp_out_norm = make_norm(config) if config.post_norm else nn.Identity()
    #: if norm_gate
    self.attention_gates = nn.ModuleDict({view: NormGate(config) for view in normed})
    self.mlp_gate = NormGate(config)
    #: end
    #: if short_swa
    self.short_swa = ShortAttention(config, layer_idx)
    self.short_norm = make_norm(config) if config.pre_norm else nn.Identity()
    #: if norm_gate
    self.short_gate = NormGate(config)
    #: end
    self.short_out_norm = make_norm(config) if config.post_norm else nn.Identity()
    #: end
    self.divisor = config.branch_divisor

  def forward(self, views: dict[str, Tensor], site: str, **kwargs) -> tuple[dict, Tensor]:
    """Returns the normalised views [B, T, D] of a site, and the output of its branch."""
    normed, out = getattr(self, f"run_{site}")(views, **kwargs)
    return normed, out if self.divisor == 1 else out / self.divisor

  def run_attention(self, views: dict[str, Tensor], **kwargs) -> tuple[dict, Tensor]:
    norms = self.attention_norms
    normed = {name: norm(views[name]) for name, norm in norms.items()} or views
    #: if norm_gate
    normed = {name: gate(normed[name]) for name, gate in self.attention_gates.items()}
    #: end
    out = self.self_attn(*(normed[name] for name in self.inputs), **kwargs)
    return normed, self.attention_out_norm(out)

  def run_mlp(self, views: dict[str, Tensor], **kwargs) -> tuple[dict, Tensor]:
    normed = self.mlp_norm(views["x"])
    #: if norm_gate
    normed = self.mlp_gate(normed)
    #: end
    return {"x": normed}, self.mlp_out_norm(self.mlp(normed))

  #: if parallel
  def run_parallel(self, views: dict[str, Tensor], **kwargs) -> tuple[dict, Tensor]:
    of_mlp, added = self.run_mlp(views)
    normed, out = self.run_attention(views, **kwargs)
    return of_mlp | normed, out + added

  #: end
  #: if short_swa
  def run_short_swa(self, views: dict[str, Tensor], **kwargs) -> tuple[dict, Tensor]:
    normed = self.short_norm(views["x"])
    #: if norm_gate
    normed = self.short_gate(normed)
    #: end
    return {"x": normed}, self.short_out_norm(self.short_swa(normed, **kwargs))

  #: end


class ResjaxPreTrainedModel(PreTrainedModel):
  """What transformers has to know of both models."""

  config_class = ResjaxConfig
  base_model_prefix = "model"
  supports_gradient_checkpointing = True
  _no_split_modules = ["DecoderLayer"]  # noqa: RUF012
  _skip_keys_device_placement = [CACHE]  # noqa: RUF012
  _supports_attention_backend = True
  _supports_flash_attn = True
  _supports_flex_attn = True
  _supports_sdpa = property(lambda self: not self.config.attn_logit_softcapping)

  def _init_weights(self, module: nn.Module) -> None:
    super()._init_weights(module)
    if isinstance(module, RotaryEmbedding):
      module.inv_freq.copy_(torch.tensor(module.frequencies))

  #: if windows
  @staticmethod
  def create_masks_for_generate(
    config: ResjaxConfig, inputs_embeds: Tensor, attention_mask: Tensor | None,
    position_ids: Tensor | None = None, **kwargs,
  ) -> dict[int, Any]:  # fmt: skip
    """Returns the masks by window; the cache keeps as many tokens as the largest one sees."""
    given = inputs_embeds, attention_mask, kwargs[CACHE], position_ids
    masks = {}
    for window in set(config.layer_windows):
      narrow = copy.copy(config)
      narrow.sliding_window = window
      make = create_sliding_window_causal_mask if window else create_causal_mask
      masks[window] = make(narrow, *given)
    return masks

  #: end


class ResjaxModel(ResjaxPreTrainedModel):
  """Embedding, layers around which the residual path is a `Residual`, final norm."""

  def __init__(self, config: ResjaxConfig):
    super().__init__(config)
    learned, width = config.position_embedding_type == "learned", config.hidden_size
    self.embed_tokens = nn.Embedding(config.vocab_size, width)
    self.embed_positions = nn.Embedding(config.max_position_embeddings, width) if learned else None
    self.rotary_emb = RotaryEmbedding(config) if config.rope_frequencies else None
    self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
    self.residual = Residual(config, self)
    #: if values
    self.values: nn.Module = ValueMixing(config)
    #: end
    self.norm = make_norm(config) if config.final_norm else nn.Identity()
    self.post_init()

  @can_return_tuple
  def forward(
    self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None, past_key_values: Cache | None = None,
    inputs_embeds: Tensor | None = None, use_cache: bool | None = None, **kwargs,
  ) -> BaseModelOutputWithPast:  # fmt: skip
    if (input_ids is None) == (inputs_embeds is None):
      raise ValueError("give either input_ids or inputs_embeds")
    x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
    cache = kwargs.pop("cache", past_key_values)
    if cache is None and (self.config.use_cache if use_cache is None else use_cache):
      cache = DynamicCache(config=self.config)
    if position_ids is None:
      position_ids = self._positions(x, attention_mask, cache)
    given = {"config": self.config, "inputs_embeds": x, "attention_mask": attention_mask}
    given |= {CACHE: cache, "position_ids": position_ids}
    #: if not windows
    makers = {"full_attention": create_causal_mask}
    makers["sliding_attention"] = create_sliding_window_causal_mask
    #: end
    masks = attention_mask  # `generate` has made them where the cache is static
    if not isinstance(masks, dict):
      #: if windows
      masks = self.create_masks_for_generate(**given)
      #: else
      masks = {kind: makers[kind](**given) for kind in set(self.config.layer_types)}
      #: end
    x = x * torch.tensor(self.config.embedding_multiplier, dtype=x.dtype)
    if self.embed_positions is not None:
      x = x + self.embed_positions(position_ids)
    shared = kwargs | {CACHE: cache, "position_ids": position_ids}
    #: if values
    shared["mix_values"] = partial(self.values, {})
    #: end
    rotations = [] if self.rotary_emb is None else self.rotary_emb(position_ids)
    state = self.residual.init(x, position_ids, cache)
    #: if windows
    sites, kinds = self.config.sites, self.config.layer_windows
    #: else
    sites, kinds = self.config.sites, self.config.layer_types
    #: end
    layers = zip(self.layers, self.config.layer_ropes, kinds, strict=True)
    for number, (layer, rotation, kind) in enumerate(layers):
      shared["position_embeddings"] = None if rotation is None else rotations[rotation]
      shared["attention_mask"] = masks[kind]
      for index, site in enumerate(sites):
        views, tape = self.residual.read(state, number, index)
        normed, out = layer(views, site, **shared)
        state = self.residual.write(state, number, index, out, normed, tape)
    hidden = self.norm(self.residual.final(state))
    return BaseModelOutputWithPast(last_hidden_state=hidden, **{CACHE: cache})

  def _positions(self, x: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
    """Returns the positions [B, T] of the tokens in their rows, without padding before them."""
    if mask is not None and mask.ndim == 2:
      return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -x.shape[1] :]
    past = 0 if cache is None else cache.get_seq_length()
    return torch.arange(x.shape[1], device=x.device)[None] + past


class ResjaxForCausalLM(ResjaxPreTrainedModel, GenerationMixin):
  """The model with an output embedding, and the loss of its logits."""

  _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

  def __init__(self, config: ResjaxConfig):
    super().__init__(config)
    self.model = ResjaxModel(config)
    self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    self.post_init()

  #: if longrope
  def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs) -> dict[str, Any]:
    """Drops a cache whose keys were turned by the angles of short rows, where a row gets long."""
    past = 0 if kwargs.get(CACHE) is None else kwargs[CACHE].get_seq_length()
    if any(0 < past <= n < input_ids.shape[1] for n in self.config.rope_short_lengths):
      kwargs |= {CACHE: None, "next_sequence_length": None}
    return super().prepare_inputs_for_generation(input_ids, **kwargs)

  #: end
  @can_return_tuple
  def forward(
    self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None, past_key_values: Cache | None = None,
    inputs_embeds: Tensor | None = None, labels: Tensor | None = None,
    use_cache: bool | None = None, logits_to_keep: int | Tensor = 0, **kwargs,
  ) -> CausalLMOutputWithPast:  # fmt: skip
    found = self.model(
      input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
      past_key_values=past_key_values, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs,
    )  # fmt: skip
    kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
    logits = self.config.logit_scale * self.lm_head(found.last_hidden_state[:, kept])
    if cap := self.config.final_logit_softcapping:
      logits = cap * torch.tanh(logits / cap)
    loss = None
    if labels is not None:
      loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
    cache = {CACHE: getattr(found, CACHE)}
    return CausalLMOutputWithPast(loss=loss, logits=logits, **cache)
