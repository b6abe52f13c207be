"""Starcoder2: Llama's attention with LayerNorm, an MLP without gate, and biases."""

from typing import Any

from resjax.interop.huggingface.families import llama
from resjax.interop.huggingface.families.family import Family, read_fields, write_fields
from resjax.interop.huggingface.rope_settings import read_rope, rope_settings
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Tensor
from resjax.models import DecoderConfig

_NAMES = {name: field for name, field in llama.NAMES.items() if name != "rms_norm_eps"}
_NAMES["norm_epsilon"] = "norm_eps"
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu": "gelu_exact"}


def _read(settings: Settings) -> dict[str, Any]:
  settings.expect("norm_type", "layer_norm")
  settings.expect("mlp_type", "default")
  settings.take("activation_function", None)  # also in published files, and not read
  defaults = {"head_dim": 0, "norm_epsilon": 1e-5, "tie_word_embeddings": True}
  return read_fields(settings, _NAMES, defaults) | {
    **read_rope(settings),
    "mlp": settings.choose("hidden_act", "gelu_pytorch_tanh", _ACTIVATIONS),
    "norm": "layernorm",
    "norm_bias": True,
    "bias": "all" if settings.take("use_bias", True) else "none",
    "windows": (settings.nullable("sliding_window", 0),),
  }


def _write(config: DecoderConfig) -> dict[str, Any]:
  return write_fields(config, _NAMES) | {
    **rope_settings(config),
    "hidden_act": "gelu" if config.mlp == "gelu_exact" else "gelu_pytorch_tanh",
    "use_bias": config.bias == "all",
    "sliding_window": max(config.windows) or None,
  }


_MAPS = tuple(
  Tensor(f"model.layers.{{}}.mlp.{name}.{ending}", f"layers/mlp/{path}/{leaf}", leaf == "kernel")
  for name, path in (("c_fc", "up_proj"), ("c_proj", "down_proj"))
  for ending, leaf in (("weight", "kernel"), ("bias", "bias"))
)
_OTHERS = tuple(
  tensor for tensor in llama.tensors(llama.NORMS) if not tensor.path.startswith("layers/mlp/")
)

STARCODER2 = Family(
  "starcoder2", "Starcoder2ForCausalLM", _read, _write, (*_OTHERS, *_MAPS), **llama.FILES
)
