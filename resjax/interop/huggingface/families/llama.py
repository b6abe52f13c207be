"""Llama and its relatives: Mistral, Qwen2, Qwen3."""

from typing import Any

from resjax.interop.huggingface.families.family import Family, pattern, rope_settings
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Tensor
from resjax.models.config import DecoderConfig

_SLIDING, _FULL = "sliding_attention", "full_attention"


def sizes(settings: Settings, head_dim: int = 0) -> dict[str, Any]:
  """Returns the sizes of a decoder in Llama's spelling; `head_dim` where the file has none."""
  return {
    "vocab_size": settings.take("vocab_size"),
    "max_positions": settings.take("max_position_embeddings"),
    "num_layers": settings.take("num_hidden_layers"),
    "d_model": settings.take("hidden_size"),
    "num_heads": settings.take("num_attention_heads"),
    "num_kv_heads": settings.take("num_key_value_heads"),
    "head_dim": settings.take("head_dim", head_dim),
    "mlp_dim": settings.take("intermediate_size"),
    "norm": "rmsnorm",
    "norm_eps": settings.take("rms_norm_eps", 1e-6),
  }


def size_settings(config: DecoderConfig) -> dict[str, Any]:
  """The inverse of `sizes`."""
  return {
    "vocab_size": config.vocab_size,
    "max_position_embeddings": config.max_positions,
    "num_hidden_layers": config.num_layers,
    "hidden_size": config.d_model,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "intermediate_size": config.mlp_dim,
    "rms_norm_eps": config.norm_eps,
    "tie_word_embeddings": config.tied_embeddings,
  }


def windows_of(settings: Settings, size: int, default: list[bool]) -> tuple[int, ...]:
  """Returns the windows of layers of which some have one.

  Args:
    settings: of config.json, whose layer_types say which.
    size: of the window.
    default: which layers have one where there are no layer_types.
  """
  types = settings.take("layer_types", [_SLIDING if slides else _FULL for slides in default])
  for kind in types:
    if kind not in (_SLIDING, _FULL):
      raise settings.refusal("layer_types", kind, f"{_SLIDING}, {_FULL}")
  if len(types) != len(default):
    raise settings.refusal("layer_types", types, f"one for each of {len(default)} layers")
  return pattern([size if kind == _SLIDING else 0 for kind in types])


def window_settings(config: DecoderConfig) -> dict[str, Any]:
  """The inverse of `windows_of`, with the size of the window."""
  return {
    "sliding_window": max(config.windows) or None,
    "layer_types": [_SLIDING if size else _FULL for size in config.layer_windows],
  }


def _common(settings: Settings, head_dim: int = 0) -> dict[str, Any]:
  return sizes(settings, head_dim) | {
    **settings.rope(),
    "mlp": settings.choose("hidden_act", "silu", {"silu": "swiglu", "swish": "swiglu"}),
    "tied_embeddings": settings.take("tie_word_embeddings", False),
  }


def _write_common(config: DecoderConfig) -> dict[str, Any]:
  return size_settings(config) | rope_settings(config) | {"hidden_act": "silu"}


def _read_llama(settings: Settings) -> dict[str, Any]:
  settings.expect("mlp_bias", False)
  settings.default("num_key_value_heads", settings.take("num_attention_heads"))  # Llama 1
  biased = settings.take("attention_bias", False)
  return _common(settings) | {"bias": "attention" if biased else "none"}


def _write_llama(config: DecoderConfig) -> dict[str, Any]:
  return _write_common(config) | {"attention_bias": config.bias == "attention", "mlp_bias": False}


def _read_mistral(settings: Settings) -> dict[str, Any]:
  return _common(settings) | {"windows": (settings.nullable("sliding_window", 4096),)}


def _write_mistral(config: DecoderConfig) -> dict[str, Any]:
  return _write_common(config) | {"sliding_window": max(config.windows) or None}


def _qwen_windows(settings: Settings) -> tuple[int, ...]:
  layers, first = settings.take("num_hidden_layers"), settings.take("max_window_layers", 28)
  size = settings.nullable("sliding_window", 4096)
  if not settings.take("use_sliding_window", False):
    size = 0
  return windows_of(settings, size, [bool(size) and i >= first for i in range(layers)])


def _qwen_window_settings(config: DecoderConfig) -> dict[str, Any]:
  return window_settings(config) | {"use_sliding_window": max(config.windows) > 0}


def _read_qwen2(settings: Settings) -> dict[str, Any]:
  return _common(settings) | {"bias": "qkv", "windows": _qwen_windows(settings)}


def _write_qwen2(config: DecoderConfig) -> dict[str, Any]:
  return _write_common(config) | _qwen_window_settings(config)


def _read_qwen3(settings: Settings) -> dict[str, Any]:
  biased = settings.take("attention_bias", False)
  return _common(settings, head_dim=128) | {
    "qk_norm": True,
    "bias": "attention" if biased else "none",
    "windows": _qwen_windows(settings),
  }


def _write_qwen3(config: DecoderConfig) -> dict[str, Any]:
  settings = _write_common(config) | _qwen_window_settings(config)
  return settings | {"attention_bias": config.bias == "attention"}


def tensors(norms: dict[str, str], offset: float = 0.0) -> tuple[Tensor, ...]:
  """Returns the tensors of a family with Llama's names.

  Args:
    norms: names of the norms of a layer to their paths.
    offset: of the gains, which ours are theirs plus.
  """
  layer = "model.layers.{}."
  rows = [
    Tensor("model.embed_tokens.weight", "embed/embedding"),
    Tensor("model.norm.weight", "final_norm/scale", offset=offset),
    Tensor("lm_head.weight", "output/embedding"),
  ]
  for name, path in norms.items():
    rows.append(Tensor(f"{layer}{name}.weight", f"layers/{path}/scale", offset=offset))
  for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
    ours = f"layers/attention/{name}"
    rows.append(Tensor(f"{layer}self_attn.{name}.weight", f"{ours}/kernel", transposed=True))
    rows.append(Tensor(f"{layer}self_attn.{name}.bias", f"{ours}/bias"))
  for name in ("gate_proj", "up_proj", "down_proj"):
    rows.append(Tensor(f"{layer}mlp.{name}.weight", f"layers/mlp/{name}/kernel", transposed=True))
  for name in ("q_norm", "k_norm"):
    rows.append(Tensor(f"{layer}self_attn.{name}.weight", f"layers/attention/{name}/scale"))
  return tuple(rows)


_NORMS = {"input_layernorm": "norms/attention/x", "post_attention_layernorm": "norms/mlp/x"}
_SHARED = {
  "tensors": tensors(_NORMS),
  "prefix": "model.",
  "buffers": (".rotary_emb.inv_freq",),
}

LLAMA = Family("llama", "LlamaForCausalLM", _read_llama, _write_llama, **_SHARED, whole_heads=True)
MISTRAL = Family("mistral", "MistralForCausalLM", _read_mistral, _write_mistral, **_SHARED)
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", _read_qwen2, _write_qwen2, **_SHARED)
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", _read_qwen3, _write_qwen3, **_SHARED)
