"""Mixtral, Qwen3-MoE and OLMoE: Llama with a mixture of experts in place of MLPs."""

from collections.abc import Sequence
from typing import Any

from resjax.interop.huggingface.families import llama
from resjax.interop.huggingface.families.family import Family
from resjax.interop.huggingface.rope_settings import read_rope, rope_settings
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Part, Tensor
from resjax.models import DecoderConfig, MoEConfig


def _read_mixtral(settings: Settings) -> dict[str, Any]:
  defaults = {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": 0}
  for name, value in defaults.items():
    settings.default(name, value)
  moe = MoEConfig(settings.take("num_local_experts", 8), settings.take("num_experts_per_tok", 2))
  return llama.MISTRAL.read(settings) | {"moe": moe}


def _write_mixtral(config: DecoderConfig) -> dict[str, Any]:
  return llama.MISTRAL.write(config) | {
    "intermediate_size": config.expert_dim,
    "num_local_experts": config.moe.num_experts,
    "num_experts_per_tok": config.moe.num_experts_per_tok,
  }


def _read_choice(settings: Settings, num_experts: int) -> dict[str, Any]:
  """Returns how a token of Qwen3-MoE or OLMoE chooses, as fields of `MoEConfig`."""
  # Files of transformers 5 have the second name for Qwen3-MoE.
  count = settings.take("num_experts", settings.take("num_local_experts", num_experts))
  settings.expect("num_local_experts", count)
  return {
    "num_experts": count,
    "num_experts_per_tok": settings.take("num_experts_per_tok", 8),
    "norm_topk_prob": settings.take("norm_topk_prob", False),
  }


def _write_choice(config: DecoderConfig) -> dict[str, Any]:
  """Returns the inverse of `_read_choice`."""
  names = ("num_experts", "num_experts_per_tok", "norm_topk_prob")
  return {name: getattr(config.moe, name) for name in names}


def _routed_layers(settings: Settings) -> dict[str, Any]:
  """Returns which layers of Qwen3-MoE have experts, as fields of `MoEConfig`."""
  layers, every = settings.take("num_hidden_layers"), settings.take("decoder_sparse_step", 1)
  dense: Sequence[int] = settings.take("mlp_only_layers", [])
  in_turn = range(every - 1, layers, every)
  routed = [layer for layer in in_turn if layer not in dense]
  first = routed[0] if routed else layers
  if routed != [layer for layer in in_turn if layer >= first]:
    raise settings.refusal("mlp_only_layers", dense, "layers before all that have experts")
  return {"every": every, "first_dense": 0 if routed and routed == [*in_turn] else first}


def _read_qwen3(settings: Settings) -> dict[str, Any]:
  choice, layers = _read_choice(settings, 128), _routed_layers(settings)
  expert_dim = settings.take("moe_intermediate_size", 768)
  routes = choice["num_experts"] and layers["first_dense"] < settings.take("num_hidden_layers")
  # These are also in published files, and not read.
  settings.take("max_window_layers", None)
  settings.expect("qkv_bias", False)
  settings.expect("use_qk_norm", True)
  settings.expect("shared_expert_intermediate_size", 0)
  slides = settings.take("use_sliding_window", False)
  size = settings.nullable("sliding_window", 4096)
  return {
    **llama.read_layers(settings),
    **read_rope(settings),
    "qk_norm": True,
    "windows": (size if slides else 0,),
    "moe": MoEConfig(expert_dim=expert_dim, **choice, **layers) if routes else MoEConfig(),
  }


def _write_qwen3(config: DecoderConfig) -> dict[str, Any]:
  moe, dense = config.moe, range(config.moe.first_dense)
  return llama.write_layers(config) | {
    **rope_settings(config),
    **_write_choice(config),
    "moe_intermediate_size": config.expert_dim,
    "decoder_sparse_step": moe.every,
    "mlp_only_layers": [layer for layer in dense if (layer + 1) % moe.every == 0],
    "sliding_window": max(config.windows) or None,
    "use_sliding_window": max(config.windows) > 0,
  }


def _read_olmoe(settings: Settings) -> dict[str, Any]:
  settings.expect("clip_qkv", None)
  llama.all_heads(settings)
  choice = _read_choice(settings, 64)
  if not choice["num_experts"]:
    raise settings.refusal("num_experts", 0, "at least 1")
  norms = {"qk_norm": True, "qk_norm_over": "heads"}
  layers = llama.read_layers(settings, eps=1e-5) | read_rope(settings)
  return layers | norms | {"moe": MoEConfig(**choice)}


def _write_olmoe(config: DecoderConfig) -> dict[str, Any]:
  written = llama.write_layers(config) | rope_settings(config) | _write_choice(config)
  del written["head_dim"]  # which is D / H there
  return written | {"intermediate_size": config.expert_dim}


_LAYER = "model.layers.{}."
_MATRICES = ("gate_proj", "up_proj", "down_proj")
# What Mixtral calls them.
_OF_MIXTRAL = ("w1", "w3", "w2")


def _halves(config: DecoderConfig) -> tuple[int, ...]:
  return config.expert_dim, config.expert_dim


def _router(block: str) -> Tensor:
  return Tensor(f"{_LAYER}{block}.gate.weight", "layers/moe/router/kernel", transposed=True)


def _experts(block: str, names: Sequence[str]) -> tuple[Tensor, ...]:
  """Returns the tensors of experts that have tensors of their own, as on the hub."""
  rows = zip(names, _MATRICES, strict=True)
  name = f"{_LAYER}{block}.experts.{{}}."
  return tuple(
    Tensor(f"{name}{stored}.weight", f"layers/moe/{ours}/kernel", transposed=True)
    for stored, ours in rows
  )


def _fused_experts() -> tuple[Tensor, ...]:
  """Returns the tensors of whole layers that transformers 5 writes on request.

  Its `save_pretrained(..., save_original_format=False)` does.
  """
  gate, up, down = (f"layers/moe/{ours}/kernel" for ours in _MATRICES)
  joined, name = f"{_LAYER}mlp.experts.gate_up_proj", f"{_LAYER}mlp.experts.down_proj"
  return (
    Tensor(joined, gate, transposed=True, part=Part(0, _halves)),
    Tensor(joined, up, transposed=True, part=Part(1, _halves)),
    Tensor(name, down, transposed=True),
  )


_FUSED = (*llama.TENSORS, _router("mlp"), *_fused_experts())
_BLOCK = "block_sparse_moe"
_MIXTRAL = (*llama.TENSORS, _router(_BLOCK), *_experts(_BLOCK, _OF_MIXTRAL))
_FILES: dict[str, Any] = {"fused": _FUSED, **llama.FILES}
_OTHERS: dict[str, Any] = {
  "tensors": (*llama.TENSORS, _router("mlp"), *_experts("mlp", _MATRICES)), **_FILES
}  # fmt: skip

MIXTRAL = Family("mixtral", "MixtralForCausalLM", _read_mixtral, _write_mixtral, _MIXTRAL, **_FILES)
_QWEN3_THERE = {"attention_bias": False}  # behind attention
_OLMOE_THERE = _QWEN3_THERE | {
  "norm_topk_prob": False, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_MOE = Family(
  "qwen3_moe", "Qwen3MoeForCausalLM", _read_qwen3, _write_qwen3, **_OTHERS,
  fixed_by_vllm=_QWEN3_THERE,
)  # fmt: skip
OLMOE = Family(
  "olmoe", "OlmoeForCausalLM", _read_olmoe, _write_olmoe, **_OTHERS, whole_heads=True,
  fixed_by_vllm=_OLMOE_THERE,
)  # fmt: skip
