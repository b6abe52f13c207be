"""StableLM: Llama with LayerNorm and a part of each head rotated."""

from typing import Any

from resjax.interop.huggingface.families import llama
from resjax.interop.huggingface.families.family import Family, read_fields, write_fields
from resjax.interop.huggingface.rope_settings import read_rope, rope_settings
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Tensor
from resjax.models import DecoderConfig

_NAMES = {
  name: field for name, field in llama.NAMES.items() if name not in ("rms_norm_eps", "head_dim")
}
_NAMES |= {"layer_norm_eps": "norm_eps", "use_parallel_residual": "parallel"}


def _read(settings: Settings) -> dict[str, Any]:
  settings.expect("qk_layernorm", False)  # which has a norm for every head
  defaults = {
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_parallel_residual": False,
  }
  return read_fields(settings, _NAMES, defaults) | {
    **read_rope(settings, fraction=0.25),
    **llama.read_swiglu(settings),
    "head_dim": 0,
    "norm": "layernorm",
    "norm_bias": True,
    "bias": "qkv" if settings.take("use_qkv_bias", False) else "none",
  }


def _write(config: DecoderConfig) -> dict[str, Any]:
  return write_fields(config, _NAMES) | {
    **rope_settings(config),
    "partial_rotary_factor": config.rope_fraction,
    "hidden_act": "silu",
    "use_qkv_bias": config.bias == "qkv",
  }


_TENSORS = llama.tensors(llama.NORMS)
# Here attention and MLP have a norm each, which must be equal to be written.
_PARALLEL = (
  *(tensor for tensor in _TENSORS if "post_attention_layernorm" not in tensor.name),
  *(
    Tensor(f"model.layers.{{}}.input_layernorm.{ending}", f"layers/norms/mlp/x/{leaf}")
    for ending, leaf in (("weight", "scale"), ("bias", "bias"))
  ),
)

STABLELM = Family(
  "stablelm", "StableLmForCausalLM", _read, _write, _TENSORS,
  **llama.FILES, parallel=_PARALLEL, whole_heads=True,
)  # fmt: skip
