"""OLMo 2 and OLMo 3: norms behind branches alone, and of all query and key heads together."""

from typing import Any

from resjax.interop.huggingface import rope_settings as ropes
from resjax.interop.huggingface.families import llama
from resjax.interop.huggingface.families.family import Family
from resjax.interop.huggingface.settings import Settings
from resjax.models import DecoderConfig

_THETAS = {ropes.SLIDING: 500_000.0, ropes.FULL: 500_000.0}  # of OLMo 3


def _common(settings: Settings) -> dict[str, Any]:
  llama.all_heads(settings)
  norms = {"pre_norm": False, "post_norm": True, "qk_norm": True, "qk_norm_over": "heads"}
  return llama.read_layers(settings, eps=1e-5) | norms


def _read_olmo2(settings: Settings) -> dict[str, Any]:
  return _common(settings) | ropes.read_rope(settings)


def _write_olmo2(config: DecoderConfig) -> dict[str, Any]:
  return llama.write_layers(config) | ropes.rope_settings(config)


def _read_olmo3(settings: Settings) -> dict[str, Any]:
  layers = settings.take("num_hidden_layers")
  size = settings.nullable("sliding_window", 4096)
  windows = llama.read_windows(settings, size, [i % 4 != 3 for i in range(layers)])
  of_layers = [windows[i % len(windows)] for i in range(layers)]
  turned = ropes.read_layer_ropes(settings, of_layers, _THETAS, None)
  return _common(settings) | {"windows": windows} | turned


def _write_olmo3(config: DecoderConfig) -> dict[str, Any]:
  turned = ropes.layer_rope_settings(config, _THETAS, None)
  return llama.write_layers(config) | llama.write_windows(config) | turned


_NORMS = {
  "post_attention_layernorm": "post_norms/attention",
  "post_feedforward_layernorm": "post_norms/mlp",
}
_SHARED: dict[str, Any] = {"tensors": llama.tensors(_NORMS), **llama.FILES}

OLMO2 = Family("olmo2", "Olmo2ForCausalLM", _read_olmo2, _write_olmo2, **_SHARED)
OLMO3 = Family("olmo3", "Olmo3ForCausalLM", _read_olmo3, _write_olmo3, **_SHARED)
