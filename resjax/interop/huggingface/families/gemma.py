"""Gemma and Gemma 2, which store the gains of norms less 1."""

from typing import Any

from resjax.interop.huggingface.families.family import Family, write_fields
from resjax.interop.huggingface.families.llama import (
  FILES,
  NAMES,
  NORMS,
  llama_tensors,
  read_sizes,
  read_windows,
  write_windows,
)
from resjax.interop.huggingface.rope_settings import read_rope, rope_settings
from resjax.interop.huggingface.settings import Settings
from resjax.models.config import DecoderConfig

_TANH = "gelu_pytorch_tanh"


def _common(settings: Settings, activations: dict[str, str]) -> dict[str, Any]:
  settings.expect("use_bidirectional_attention", False)
  settings.take("hidden_act", None)
  name = "hidden_activation" if settings.take("hidden_activation", None) else "hidden_act"
  biased = settings.take("attention_bias", False)
  return read_sizes(settings, head_dim=256, tied=True) | {
    **read_rope(settings),
    "mlp": settings.choose(name, _TANH, activations),
    "bias": "attention" if biased else "none",
    "embed_scale": True,
  }


def _write_common(config: DecoderConfig) -> dict[str, Any]:
  return write_fields(config, NAMES) | {
    **rope_settings(config),
    "hidden_act": _TANH,
    "hidden_activation": _TANH,
    "attention_bias": config.bias == "attention",
  }


def _read_gemma(settings: Settings) -> dict[str, Any]:
  # The first files say gelu and mean its tanh approximation.
  return _common(settings, {_TANH: "geglu", "gelu_new": "geglu", "gelu": "geglu"})


def _read_gemma2(settings: Settings) -> dict[str, Any]:
  layers = settings.take("num_hidden_layers")
  settings.take("sliding_window_size", None)  # Also in the first files.
  return _common(settings, {_TANH: "geglu", "gelu_new": "geglu"}) | {
    "post_norm": True,
    "query_pre_attn_scalar": float(settings.take("query_pre_attn_scalar", 256)),
    "windows": read_windows(
      settings, settings.nullable("sliding_window", 4096), [i % 2 == 0 for i in range(layers)]
    ),
    "attention_softcap": float(settings.nullable("attn_logit_softcapping", 50.0)),
    "logit_softcap": float(settings.nullable("final_logit_softcapping", 30.0)),
  }


def _write_gemma2(config: DecoderConfig) -> dict[str, Any]:
  scalar = config.query_pre_attn_scalar or config.head_dim
  return (
    _write_common(config)
    | write_windows(config)
    | {
      "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
      "attn_logit_softcapping": config.attention_softcap or None,
      "final_logit_softcapping": config.logit_softcap or None,
    }
  )


_GEMMA2_NORMS = {
  "input_layernorm": "norms/attention/x",
  "post_attention_layernorm": "post_norms/attention",
  "pre_feedforward_layernorm": "norms/mlp/x",
  "post_feedforward_layernorm": "post_norms/mlp",
}
_GEMMA, _GEMMA2 = (llama_tensors(norms, offset=1.0) for norms in (NORMS, _GEMMA2_NORMS))

GEMMA = Family("gemma", "GemmaForCausalLM", _read_gemma, _write_common, _GEMMA, **FILES)
GEMMA2 = Family(
  "gemma2", "Gemma2ForCausalLM", _read_gemma2, _write_gemma2, _GEMMA2, **FILES, whole_heads=True
)
