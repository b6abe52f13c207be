"""Gemma, Gemma 2 and Gemma 3, which store the gains of norms less 1."""

from typing import Any

from resjax.interop.huggingface import rope_settings as ropes
from resjax.interop.huggingface.families import llama
from resjax.interop.huggingface.families.family import Family, write_fields
from resjax.interop.huggingface.settings import Settings
from resjax.models import DecoderConfig

_TANH = "gelu_pytorch_tanh"


# What transformers takes where a file of Gemma 3 does not say; that of the 4B model says little.
_GEMMA3 = {
  "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
}  # fmt: skip
_THETAS = {ropes.SLIDING: 10_000.0, ropes.FULL: 1_000_000.0}  # of Gemma 3
_LOCAL = "rope_local_base_freq"


def _common(settings: Settings, activations: dict[str, str]) -> dict[str, Any]:
  settings.expect("use_bidirectional_attention", False)
  settings.take("hidden_act", None)
  name = "hidden_activation" if settings.take("hidden_activation", None) else "hidden_act"
  biased = settings.take("attention_bias", False)
  return llama.read_sizes(settings, head_dim=256, tied=True) | {
    "mlp": settings.choose(name, _TANH, activations),
    "bias": "attention" if biased else "none",
    "embed_scale": True,
  }


def _write_common(config: DecoderConfig) -> dict[str, Any]:
  return write_fields(config, llama.NAMES) | {
    "hidden_act": _TANH,
    "hidden_activation": _TANH,
    "attention_bias": config.bias == "attention",
  }


def _read_gemma(settings: Settings) -> dict[str, Any]:
  # The first files say gelu and mean its tanh approximation.
  activations = {_TANH: "geglu", "gelu_new": "geglu", "gelu": "geglu"}
  return _common(settings, activations) | ropes.read_rope(settings)


def _write_gemma(config: DecoderConfig) -> dict[str, Any]:
  return _write_common(config) | ropes.rope_settings(config)


def _read_gemma2(settings: Settings) -> dict[str, Any]:
  layers = settings.take("num_hidden_layers")
  settings.take("sliding_window_size", None)  # Also in the first files.
  return _common(settings, {_TANH: "geglu", "gelu_new": "geglu"}) | {
    **ropes.read_rope(settings),
    "post_norm": True,
    "query_pre_attn_scalar": float(settings.take("query_pre_attn_scalar", 256)),
    "windows": llama.read_windows(
      settings, settings.nullable("sliding_window", 4096), [i % 2 == 0 for i in range(layers)]
    ),
    "attention_softcap": float(settings.nullable("attn_logit_softcapping", 50.0)),
    "logit_softcap": float(settings.nullable("final_logit_softcapping", 30.0)),
  }


def _write_gemma2(config: DecoderConfig) -> dict[str, Any]:
  return _write_windowed(config) | ropes.rope_settings(config)


def _write_windowed(config: DecoderConfig) -> dict[str, Any]:
  # transformers makes masks with windows even if no layer has one.
  windows = llama.write_windows(config) | {"sliding_window": max(config.windows) or 4096}
  scalar = config.query_pre_attn_scalar or config.head_dim
  return (
    _write_common(config)
    | windows
    | {
      "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
      "attn_logit_softcapping": config.attention_softcap or None,
      "final_logit_softcapping": config.logit_softcap or None,
    }
  )


def _read_gemma3(settings: Settings) -> dict[str, Any]:
  for name, value in _GEMMA3.items():
    settings.default(name, value)
  settings.expect("attn_logit_softcapping", None)  # which transformers leaves out
  layers, period = settings.take("num_hidden_layers"), settings.take("sliding_window_pattern", 6)
  size = settings.nullable("sliding_window", 4096)
  windows = llama.read_windows(settings, size, [(i + 1) % period != 0 for i in range(layers)])
  of_layers = [windows[i % len(windows)] for i in range(layers)]
  return _common(settings, {_TANH: "geglu", "gelu_new": "geglu"}) | {
    **ropes.read_layer_ropes(settings, of_layers, _THETAS, _LOCAL),
    "post_norm": True,
    "qk_norm": True,
    "query_pre_attn_scalar": float(settings.take("query_pre_attn_scalar", 256)),
    "windows": windows,
    "logit_softcap": float(settings.nullable("final_logit_softcapping", 0.0)),
  }


def _write_gemma3(config: DecoderConfig) -> dict[str, Any]:
  return _write_windowed(config) | ropes.layer_rope_settings(config, _THETAS, _LOCAL)


_GEMMA2_NORMS = {
  "input_layernorm": "norms/attention/x",
  "post_attention_layernorm": "post_norms/attention",
  "pre_feedforward_layernorm": "norms/mlp/x",
  "post_feedforward_layernorm": "post_norms/mlp",
}
_GEMMA, _GEMMA2 = (llama.tensors(norms, offset=1.0) for norms in (llama.NORMS, _GEMMA2_NORMS))

GEMMA = Family("gemma", "GemmaForCausalLM", _read_gemma, _write_gemma, _GEMMA, **llama.FILES)
GEMMA2 = Family(
  "gemma2", "Gemma2ForCausalLM", _read_gemma2, _write_gemma2, _GEMMA2, **llama.FILES,
  whole_heads=True,
)  # fmt: skip
GEMMA3 = Family(
  "gemma3_text", "Gemma3ForCausalLM", _read_gemma3, _write_gemma3, _GEMMA2, **llama.FILES,
  whole_heads=True, nested=("gemma3", "Gemma3ForConditionalGeneration"),
)  # fmt: skip
