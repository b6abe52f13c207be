"""The settings of a config.json, each of which is used, known to be harmless, or refused."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from resjax import typed_json
from resjax.data.pretrained_tokenizer import MOST_ROWS
from resjax.models.config import MOST_LAYERS

# Settings that do not change what a model computes at inference.
_HARMLESS = frozenset(
  (
    "_attn_implementation", "_attn_implementation_internal", "_commit_hash", "_name_or_path",
    "_num_labels", "_sliding_window_pattern", "architectures", "attention_dropout",
    "attention_probs_dropout_prob", "attn_pdrop", "bad_words_ids", "begin_suppress_tokens",
    "bos_token", "bos_token_id", "cache_implementation", "chunk_size_feed_forward",
    "classifier_dropout", "decoder_start_token_id", "dtype", "embd_pdrop", "embedding_dropout",
    "eos_token", "eos_token_id", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "id2label",
    "initializer_range", "is_decoder", "is_llama_config", "keys_to_ignore_at_inference", "label2id",
    "max_length", "max_sequence_length", "model_type", "n_ctx", "n_special", "name_or_path",
    "neftune_noise_alpha", "num_labels", "output_attentions", "output_hidden_states", "output_past",
    "pad_token_id", "predict_special_tokens", "prefix", "pretraining_tp", "problem_type",
    "resid_pdrop", "residual_dropout", "return_dict", "sep_token_id", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "suppress_tokens", "task_specific_params", "tf_legacy_loss", "tokenizer_class", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version", "unsloth_version",
    "use_bfloat16", "use_cache",
  )
)  # fmt: skip
# Settings of what reads images, in a file that also has a model of text.
_OF_IMAGES = frozenset(
  (
    "boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index", "image_token_id",
    "image_token_index", "mm_tokens_per_image", "vision_config",
  )
)  # fmt: skip
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
  mlp_type: str | None = None
  model_type: str | None = None
  n_embd: _Size | None = None
  n_head: _Size | None = None
  n_inner: _Size | None = None
  n_layer: _Layers | None = None
  n_positions: _Size | None = None
  no_rope_layer_interval: _Size | None = None
  no_rope_layers: list[Annotated[int, msgspec.Meta(ge=0, le=1)]] | None = None
  norm_epsilon: _Fraction | msgspec.UnsetType = msgspec.UNSET  # not null
  norm_type: str | None = None
  num_attention_heads: _Size | None = None
  num_hidden_layers: _Layers | None = None
  num_key_value_heads: _Size | None = None
  original_max_position_embeddings: _Size | None = None
  partial_rotary_factor: _Fraction | None = None
  qk_layernorm: bool | None = None
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
  sliding_window: _Window | None = None
  sliding_window_pattern: _Size | None = None
  sliding_window_size: _Window | None = None
  text_config: dict[str, Any] | None = None
  tie_word_embeddings: bool | None = None
  use_bias: bool | None = None
  use_bidirectional_attention: bool | None = None
  use_parallel_residual: bool | None = None
  use_qkv_bias: bool | None = None
  use_sliding_window: bool | None = None
  vocab_size: _Rows | None = None


_NAMES = frozenset(field.name for field in dataclasses.fields(_Types))


class Settings:
  """The settings of a config.json, which refuses settings that no caller has taken.

  Args:
    values: the settings by name.
    where: the path of the file, for messages.

  Raises:
    ValueError: a setting that a family may use has another type, or is out of range.
  """

  def __init__(self, values: Mapping[str, Any], where: str):
    typed_json.convert(dict(values), _Types, where)
    self._values, self._where = values, where
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
    return Settings(inner, f"{self._where}: text_config")

  def finish(self) -> None:
    """Raises ValueError if the file has a setting that no caller took, unless it is off."""
    for name, value in self._values.items():
      if name not in self._used | _HARMLESS and value is not None and value is not False:
        raise ValueError(
          f"{self._where}: {name}={value!r} is not known for model_type="
          f"{self._values.get('model_type')!r}, and may change what the model computes"
        )
