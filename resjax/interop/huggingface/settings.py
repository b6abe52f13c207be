"""The settings of a config.json, each of which is used, known to be harmless, or refused."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec

from resjax.base import typed_json
from resjax.data import MOST_ROWS
from resjax.models import MOST_LAYERS

# Settings that do not change what a model computes at inference.
_HARMLESS = frozenset(
  (
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
    "_commit_hash", "_flash_attn_2_enabled", "_name_or_path", "_num_labels",
    "_sliding_window_pattern", "_use_flash_attention_2", "activation_dropout", "architectures",
    "attention_dropout", "attention_probs_dropout_prob", "attention_softmax_in_fp32",
    "attn_implementation", "attn_pdrop", "auto_map", "bad_words_ids", "base_model",
    "begin_suppress_tokens", "bf16", "bos_token", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "classifier_dropout", "cls_token_id", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dropout", "dtype", "early_stopping", "emb_dropout",
    "embd_pdrop", "embed_dropout", "embedding_dropout", "encoder_no_repeat_ngram_size", "eos_token",
    "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "fp16", "fp32", "fused_bias_fc", "gradient_checkpointing",
    "hidden_dropout", "hidden_dropout_prob", "id2label", "initializer_cutoff_factor",
    "initializer_range", "is_decoder", "is_llama_config", "keys_to_ignore_at_inference", "label2id",
    "language", "layerdrop", "length_penalty", "license", "mask_token_id", "max_length",
    "max_new_tokens", "max_seq_len", "max_seq_length", "max_sequence_length", "max_time",
    "min_length", "min_new_tokens", "mlp_dropout", "model_max_length", "model_type", "n_ctx",
    "n_special", "name_or_path", "neftune_noise_alpha", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_labels", "num_logits_to_keep", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_past", "output_router_logits", "output_scores", "pad_token",
    "pad_token_id", "predict_special_tokens", "prefix", "pretraining_tp", "problem_type",
    "remove_invalid_values", "repetition_penalty", "resid_pdrop", "residual_dropout", "return_dict",
    "return_dict_in_generate", "router_aux_loss_coef", "router_jitter_noise", "sep_token_id",
    "seq_length", "sequence_parallel", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "suppress_tokens",
    "task_specific_params", "temperature", "tensor_parallel_degree", "tensor_parallel_output",
    "tf_legacy_loss", "tokenizer_class", "tokenizer_model_max_length", "tokenizer_padding_side",
    "tokenizer_type", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config",
    "transformers_version", "typical_p", "unk_token", "unk_token_id", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache", "use_flash_attention", "use_flash_attn",
    "use_fused_mlp", "use_fused_rms_norm", "use_fused_rope", "use_gradient_checkpointing",
    "use_memory_efficient_attention", "use_xformers",
  )
)  # fmt: skip
# Settings of what reads images, in a file that also has a model of text.
_OF_IMAGES = frozenset(
  (
    "boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index", "image_token_id",
    "image_token_index", "mm_tokens_per_image", "vision_config",
  )
)  # fmt: skip
# What resjax does not compute, and settings that tell of it.
_BEYOND = {
  "experts of another kind": (
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts",
    "num_experts_per_tok", "moe_intermediate_size",
  ),
  "a gate of shared experts": ("shared_expert_intermediate_size",),
  "latent attention": ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"),
  "linear attention or a state": (
    "linear_num_value_heads", "linear_num_key_heads", "linear_attn_config", "mamba_d_state",
    "mamba_d_ssm", "ssm_state_size", "state_size", "conv_L_cache", "wkv_heads",
  ),
  "packed weights": ("quantization_config", "quantization"),
}  # fmt: skip
_REQUIRED = object()

_Layers = Annotated[int, msgspec.Meta(ge=1, le=MOST_LAYERS)]
_Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Window = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
_Cap = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
_Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]


@dataclasses.dataclass(frozen=True)
class _Rope:
  """The types of the settings of rotary positions, in old and new spelling."""

  rope_theta: _Positive | None = None
  partial_rotary_factor: _Fraction | None = None
  rope_type: str | None = None
  type: str | None = None
  factor: _Positive | None = None
  low_freq_factor: _Positive | None = None
  high_freq_factor: _Positive | None = None
  original_max_position_embeddings: _Size | None = None
  attention_factor: _Positive | None = None
  beta_fast: _Positive | None = None
  beta_slow: _Positive | None = None
  mscale: _Cap | None = None
  mscale_all_dim: _Cap | None = None
  truncate: bool | None = None
  short_factor: list[_Positive] | None = None
  long_factor: list[_Positive] | None = None


@dataclasses.dataclass(frozen=True)
class _Ropes(_Rope):
  """The same where the types of layers may have rotations of their own."""

  full_attention: _Rope | None = None
  sliding_attention: _Rope | None = None


@dataclasses.dataclass(frozen=True)
class _Types:
  """The types and ranges of all settings that a family may use; null is a setting that is missing.

  JSON has no infinity, and numbers are limited so that float32 holds them.
  """

  activation_function: str | None = None
  add_cross_attention: bool | None = None
  architectures: list[str] | None = None
  attention_bias: bool | None = None
  attn_logit_softcapping: _Cap | None = None
  clip_qkv: _Positive | None = None
  decoder_sparse_step: _Size | None = None
  final_logit_softcapping: _Cap | None = None
  head_dim: _Size | None = None
  hidden_act: str | None = None
  hidden_activation: str | None = None
  hidden_size: _Size | None = None
  initializer_range: _Cap | None = None
  intermediate_size: _Size | None = None
  layer_norm_eps: _Fraction | msgspec.UnsetType = msgspec.UNSET  # not null
  layer_norm_epsilon: _Fraction | msgspec.UnsetType = msgspec.UNSET  # not null
  layer_types: list[str] | None = None
  max_position_embeddings: _Size | None = None
  max_window_layers: _Window | None = None
  mlp_bias: bool | None = None
  mlp_only_layers: list[int] | None = None
  mlp_type: str | None = None
  model_type: str | None = None
  moe_intermediate_size: _Size | None = None
  n_embd: _Size | None = None
  n_head: _Size | None = None
  n_inner: _Size | None = None
  n_layer: _Layers | None = None
  n_positions: _Size | None = None
  no_rope_layer_interval: _Size | None = None
  no_rope_layers: list[Annotated[int, msgspec.Meta(ge=0, le=1)]] | None = None
  norm_epsilon: _Fraction | msgspec.UnsetType = msgspec.UNSET  # not null
  norm_topk_prob: bool | None = None
  norm_type: str | None = None
  num_attention_heads: _Size | None = None
  num_experts: _Window | None = None
  num_experts_per_tok: _Size | None = None
  num_hidden_layers: _Layers | None = None
  num_key_value_heads: _Size | None = None
  num_local_experts: _Size | None = None
  original_max_position_embeddings: _Size | None = None
  partial_rotary_factor: _Fraction | None = None
  qk_layernorm: bool | None = None
  qkv_bias: bool | None = None
  query_pre_attn_scalar: _Positive | None = None
  reorder_and_upcast_attn: bool | None = None
  rms_norm_eps: _Fraction | msgspec.UnsetType = msgspec.UNSET  # not null
  rope_local_base_freq: _Positive | None = None
  rope_parameters: _Ropes | None = None
  rope_scaling: _Rope | None = None
  rope_theta: _Positive | None = None
  rotary_emb_base: _Positive | None = None
  rotary_pct: _Fraction | None = None
  scale_attn_by_inverse_layer_idx: bool | None = None
  scale_attn_weights: bool | None = None
  shared_expert_intermediate_size: _Window | None = None
  sliding_window: _Window | None = None
  sliding_window_pattern: _Size | None = None
  sliding_window_size: _Window | None = None
  text_config: dict[str, Any] | None = None
  tie_word_embeddings: bool | None = None
  use_bias: bool | None = None
  use_bidirectional_attention: bool | None = None
  use_parallel_residual: bool | None = None
  use_qk_norm: bool | None = None
  use_qkv_bias: bool | None = None
  use_sliding_window: bool | None = None
  vocab_size: _Rows | None = None


_NAMES = frozenset(field.name for field in dataclasses.fields(_Types))


class Settings:
  """The settings of a config.json, which refuses settings that no caller has taken.

  Args:
    values: the settings by name.
    where: the path of the file, for messages.
    ignore: the names of settings that no caller takes and that are not refused.

  Raises:
    ValueError: a setting that a family may use has another type, or is out of range.
  """

  def __init__(self, values: Mapping[str, Any], where: str, ignore: Collection[str] = ()):
    typed_json.convert(dict(values), _Types, where)
    self._values, self._where, self._ignored = values, where, frozenset(ignore)
    self._used: set[str] = set()

  def take(self, name: str, default: Any = _REQUIRED) -> Any:
    """Returns a setting, or `default` if it is missing or null.

    Raises:
      ValueError: The setting is missing and has no default.
    """
    # Each setting that decides something has its type and its range.
    assert name in _NAMES, name
    self._used.add(name)
    value = self._values.get(name)
    if value is None and default is _REQUIRED:
      raise ValueError(f"{self._where} has no {name}")
    return default if value is None else value

  def default(self, name: str, value: Any) -> None:
    """Sets the value of a setting that is missing or null."""
    if self._values.get(name) is None:
      self._values = {**self._values, name: value}

  def nullable(self, name: str, default: Any) -> Any:
    """Returns a setting, `default` if it is missing, or 0 if it is null."""
    return self.take(name, 0 if name in self._values else default)

  def expect(self, name: str, *allowed: Any) -> None:
    """Raises ValueError unless a setting is missing, null, or one of `allowed`."""
    value = self.take(name, allowed[0])
    if value not in allowed:
      raise self.refusal(name, value, ", ".join(repr(a) for a in allowed))

  def choose(self, name: str, default: str, choices: Mapping[str, str]) -> str:
    """Returns the entry of `choices` for the value of a setting.

    Raises:
      ValueError: `choices` has no such entry.
    """
    value = self.take(name, default)
    if value not in choices:
      raise self.refusal(name, value, ", ".join(choices))
    return choices[value]

  def refusal(self, name: str, value: Any, allowed: str) -> ValueError:
    """Returns the error for a value that this decoder does not support."""
    return ValueError(f"{self._where}: {name}={value!r} is not supported; allowed: {allowed}")

  def of_text(self) -> "Settings":
    """Returns the settings of the model of text, in a file that also describes one of images."""
    inner = self.take("text_config")
    self._used |= _OF_IMAGES
    if (tied := self.take("tie_word_embeddings", None)) is not None:
      inner = {**inner, "tie_word_embeddings": tied}
    self.finish()
    return Settings(inner, f"{self._where}: text_config", self._ignored)

  def finish(self) -> None:
    """Raises ValueError if the file has a setting that no caller took, unless it is off."""
    kind = self._values.get("model_type")
    for name in sorted(self._ignored & self._used & self._values.keys()):
      raise ValueError(
        f"{self._where}: {name} decides what a model with model_type={kind!r} computes, so that it "
        "cannot be ignored; take it out of ignore (--hf_ignore, config.train.hf_ignore)"
      )
    for name, value in self._values.items():
      if name in self._used | _HARMLESS | self._ignored or _is_off(value):
        continue
      raise ValueError(
        f"{self._where}: {name}={_short(value)} is not known for model_type={kind!r}, and may "
        f"change what the model computes{reasons({name: value})}; if it does not, ignore it with "
        f"ignore=({name!r},), on the command line --hf_ignore={name}, in training "
        "config.train.hf_ignore"
      )


def reasons(values: Mapping[str, Any]) -> str:
  """Returns what resjax does not compute of a model with these settings, as the end of a sentence.

  It is empty where they do not tell.
  """
  inner = values.get("text_config")
  values = {**values, **inner} if isinstance(inner, dict) else values
  found = []
  for what, names in _BEYOND.items():
    telling = [name for name in names if not _is_off(values.get(name)) and values[name] != 0]
    found += [f"{what} ({telling[0]})"] if telling else []
  return f": it has {' and '.join(found)}, which resjax does not compute" if found else ""


def _is_off(value: Any) -> bool:
  """Returns whether the value of a setting switches something off, or says nothing."""
  return value is None or value is False or value in ({}, [])


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
