"""Phi-3 and Phi-4: Llama with joined maps, and wavelengths for long rows."""

from typing import Any

from resjax.interop.huggingface.families import llama
from resjax.interop.huggingface.families.family import Family, write_fields
from resjax.interop.huggingface.rope_settings import read_rope, rope_settings
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Part, Tensor
from resjax.models import DecoderConfig

_ORIGINAL = 4096  # the length of the rows of pretraining, where a file does not say


def _read(settings: Settings) -> dict[str, Any]:
  settings.expect("attention_bias", False)
  llama.all_heads(settings)
  aliases = {"su": "longrope", "yarn": "longrope"}
  rope = read_rope(settings, fraction=1.0, original=_ORIGINAL, aliases=aliases)
  kind = rope["rope_scaling"].kind
  if kind not in ("none", "longrope"):
    raise settings.refusal("rope_scaling.rope_type", kind, "default, longrope")
  windows = {"windows": (settings.nullable("sliding_window", 0),)}
  return llama.read_sizes(settings, eps=1e-5) | rope | windows | llama.read_swiglu(settings)


def _write(config: DecoderConfig) -> dict[str, Any]:
  rope = rope_settings(config, longrope=True)
  if scaling := rope["rope_scaling"]:
    # transformers 4 allows no others than the lists here.
    n = scaling.pop("original_max_position_embeddings", _ORIGINAL)
    rope["original_max_position_embeddings"] = n
    if scaling.get("factor") == config.max_positions / n:
      del scaling["factor"]
  return write_fields(config, llama.NAMES) | {
    **rope,
    "partial_rotary_factor": config.rope_fraction,
    "sliding_window": max(config.windows) or None,
    "hidden_act": "silu",
    "attention_bias": False,
  }


def _heads(config: DecoderConfig) -> tuple[int, ...]:
  keys = config.num_kv_heads * config.head_dim
  return config.num_heads * config.head_dim, keys, keys


def _halves(config: DecoderConfig) -> tuple[int, ...]:
  return config.mlp_dim, config.mlp_dim


_LAYER = "model.layers.{}."
_JOINED = {
  f"{_LAYER}self_attn.qkv_proj.weight": (_heads, "attention", ("q_proj", "k_proj", "v_proj")),
  f"{_LAYER}mlp.gate_up_proj.weight": (_halves, "mlp", ("gate_proj", "up_proj")),
}
_MAPS = tuple(
  Tensor(name, f"layers/{sublayer}/{part}/kernel", transposed=True, part=Part(index, widths))
  for name, (widths, sublayer, parts) in _JOINED.items()
  for index, part in enumerate(parts)
)
_PATHS = {tensor.path for tensor in _MAPS}
_OTHERS = tuple(tensor for tensor in llama.tensors(llama.NORMS) if tensor.path not in _PATHS)

PHI3 = Family("phi3", "Phi3ForCausalLM", _read, _write, (*_OTHERS, *_MAPS), **llama.FILES)
