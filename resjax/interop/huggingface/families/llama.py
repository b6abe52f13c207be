"""Llama and the families with its names of settings and tensors: Mistral, Qwen2, Qwen3."""

from typing import Any

from resjax.interop.huggingface.families.family import (
  Family,
  read_fields,
  write_fields,
)
from resjax.interop.huggingface.rope_settings import (
  FULL,
  SLIDING,
  read_rope,
  rope_settings,
  shortest_pattern,
)
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Tensor
from resjax.models import DecoderConfig

# The settings and the fields of `DecoderConfig` that they become.
NAMES = {
  "vocab_size": "vocab_size",
  "max_position_embeddings": "max_positions",
  "num_hidden_layers": "num_layers",
  "hidden_size": "d_model",
  "num_attention_heads": "num_heads",
  "num_key_value_heads": "num_kv_heads",
  "head_dim": "head_dim",
  "intermediate_size": "mlp_dim",
  "rms_norm_eps": "norm_eps",
  "tie_word_embeddings": "tied_embeddings",
}


def read_sizes(
  settings: Settings, head_dim: int = 0, tied: bool = False, eps: float = 1e-6
) -> dict[str, Any]:
  """Returns the sizes of a decoder, its norm, and whether its embeddings are tied.

  `head_dim` (0 stands for D / H), `tied` and `eps` hold for a file that does not have them.
  """
  defaults = {"head_dim": head_dim, "rms_norm_eps": eps, "tie_word_embeddings": tied}
  return read_fields(settings, NAMES, defaults) | {"norm": "rmsnorm"}


def read_windows(settings: Settings, size: int, default: list[bool]) -> tuple[int, ...]:
  """Returns the attention windows of the layers, as a pattern that repeats.

  The setting layer_types says which layers have a window of this size; without it, `default` does.
  """
  types = settings.take("layer_types", [SLIDING if slides else FULL for slides in default])
  for kind in types:
    if kind not in (SLIDING, FULL):
      raise settings.refusal("layer_types", kind, f"{SLIDING}, {FULL}")
  if len(types) != len(default):
    raise settings.refusal("layer_types", types, f"one for each of {len(default)} layers")
  return shortest_pattern([size if kind == SLIDING else 0 for kind in types])


def write_windows(config: DecoderConfig) -> dict[str, Any]:
  """Returns the size of the window and the layer_types, the inverse of `read_windows`."""
  return {
    "sliding_window": max(config.windows) or None,
    "layer_types": [SLIDING if size else FULL for size in config.layer_windows],
  }


def read_swiglu(settings: Settings) -> dict[str, Any]:
  """Returns the MLP of families that have no other."""
  return {"mlp": settings.choose("hidden_act", "silu", {"silu": "swiglu", "swish": "swiglu"})}


def read_bias(settings: Settings) -> dict[str, Any]:
  """Returns whether the maps of the attention have biases."""
  return {"bias": "attention" if settings.take("attention_bias", False) else "none"}


def write_bias(config: DecoderConfig) -> dict[str, Any]:
  """Returns the inverse of `read_bias`."""
  return {"attention_bias": config.bias == "attention"}


def read_layers(settings: Settings, **sizes: Any) -> dict[str, Any]:
  """Returns the settings of Llama's layers: sizes, MLP and biases, without rotation and windows.

  `sizes` is for a file that does not have them, see `read_sizes`.
  """
  return read_sizes(settings, **sizes) | read_swiglu(settings) | read_bias(settings)


def write_layers(config: DecoderConfig) -> dict[str, Any]:
  """Returns the inverse of `read_layers`."""
  return write_fields(config, NAMES) | write_bias(config) | {"hidden_act": "silu"}


def all_heads(settings: Settings) -> None:
  """Gives a file that does not say otherwise as many key heads as query heads."""
  settings.default("num_key_value_heads", settings.take("num_attention_heads"))


def _common(settings: Settings, head_dim: int = 0) -> dict[str, Any]:
  return read_sizes(settings, head_dim) | read_rope(settings) | read_swiglu(settings)


def _write_common(config: DecoderConfig) -> dict[str, Any]:
  return write_fields(config, NAMES) | rope_settings(config) | {"hidden_act": "silu"}


def _read_llama(settings: Settings) -> dict[str, Any]:
  settings.expect("mlp_bias", False)
  all_heads(settings)  # as in Llama 1
  return _common(settings) | read_bias(settings)


def _write_llama(config: DecoderConfig) -> dict[str, Any]:
  return _write_common(config) | write_bias(config) | {"mlp_bias": False}


def _read_mistral(settings: Settings) -> dict[str, Any]:
  return _common(settings) | {"windows": (settings.nullable("sliding_window", 4096),)}


def _write_mistral(config: DecoderConfig) -> dict[str, Any]:
  return _write_common(config) | {"sliding_window": max(config.windows) or None}


def _qwen_windows(settings: Settings) -> tuple[int, ...]:
  layers, first = settings.take("num_hidden_layers"), settings.take("max_window_layers", 28)
  size = settings.nullable("sliding_window", 4096)
  if not settings.take("use_sliding_window", False):
    size = 0
  return read_windows(settings, size, [bool(size) and i >= first for i in range(layers)])


def _qwen_window_settings(config: DecoderConfig) -> dict[str, Any]:
  return write_windows(config) | {"use_sliding_window": max(config.windows) > 0}


def _read_qwen2(settings: Settings) -> dict[str, Any]:
  return _common(settings) | {"bias": "qkv", "windows": _qwen_windows(settings)}


def _write_qwen2(config: DecoderConfig) -> dict[str, Any]:
  return _write_common(config) | _qwen_window_settings(config)


def _read_qwen3(settings: Settings) -> dict[str, Any]:
  found = _common(settings, head_dim=128) | read_bias(settings)
  return found | {"qk_norm": True, "windows": _qwen_windows(settings)}


def _write_qwen3(config: DecoderConfig) -> dict[str, Any]:
  return _write_common(config) | _qwen_window_settings(config) | write_bias(config)


def tensors(norms: dict[str, str], offset: float = 0.0) -> tuple[Tensor, ...]:
  """Returns the tensors of a family with Llama's names.

  `norms` has the path of each norm of a layer, and `offset` is added to the stored gains of norms.
  """
  layer = "model.layers.{}."
  rows = [
    Tensor("model.embed_tokens.weight", "embed/embedding"),
    Tensor("model.norm.weight", "final_norm/scale", offset=offset),
    Tensor("model.norm.bias", "final_norm/bias"),
    Tensor("lm_head.weight", "output/embedding"),
  ]
  for name, path in norms.items():
    rows.append(Tensor(f"{layer}{name}.weight", f"layers/{path}/scale", offset=offset))
    rows.append(Tensor(f"{layer}{name}.bias", f"layers/{path}/bias"))
  for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
    path = f"layers/attention/{name}"
    rows.append(Tensor(f"{layer}self_attn.{name}.weight", f"{path}/kernel", transposed=True))
    rows.append(Tensor(f"{layer}self_attn.{name}.bias", f"{path}/bias"))
  for name in ("gate_proj", "up_proj", "down_proj"):
    rows.append(Tensor(f"{layer}mlp.{name}.weight", f"layers/mlp/{name}/kernel", transposed=True))
  for name in ("q_norm", "k_norm"):
    path = f"layers/attention/{name}/scale"
    rows.append(Tensor(f"{layer}self_attn.{name}.weight", path, offset=offset))
  return tuple(rows)


# The norms of a layer in most families, and what the names of tensors in a file begin and end with.
NORMS = {"input_layernorm": "norms/attention/x", "post_attention_layernorm": "norms/mlp/x"}
FILES: dict[str, Any] = {"prefix": "model.", "buffers": (".rotary_emb.inv_freq",)}
TENSORS = tensors(NORMS)
_SHARED: dict[str, Any] = {"tensors": TENSORS, **FILES}

LLAMA = Family("llama", "LlamaForCausalLM", _read_llama, _write_llama, **_SHARED, whole_heads=True)
MISTRAL = Family("mistral", "MistralForCausalLM", _read_mistral, _write_mistral, **_SHARED)
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", _read_qwen2, _write_qwen2, **_SHARED)
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", _read_qwen3, _write_qwen3, **_SHARED)
