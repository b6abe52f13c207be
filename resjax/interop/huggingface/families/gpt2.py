"""GPT-2."""

from typing import Any

from resjax.interop.huggingface.families.family import Family
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Part, Tensor
from resjax.models.config import DecoderConfig

_ACTIVATIONS = {
  "gelu_new": "gelu",
  "gelu_pytorch_tanh": "gelu",
  "gelu_fast": "gelu",
  "gelu": "gelu_exact",
}


def _read(settings: Settings) -> dict[str, Any]:
  settings.expect("scale_attn_by_inverse_layer_idx", False)
  settings.expect("add_cross_attention", False)
  settings.take("reorder_and_upcast_attn", False)  # the same function, rounded elsewhere
  width, heads = settings.take("n_embd", 768), settings.take("n_head", 12)
  return {
    "vocab_size": settings.take("vocab_size", 50257),
    "max_positions": settings.take("n_positions", 1024),
    "num_layers": settings.take("n_layer", 12),
    "d_model": width,
    "num_heads": heads,
    "num_kv_heads": heads,
    "head_dim": 0,
    "mlp_dim": settings.take("n_inner", 4 * width),
    "positions": "learned",
    "norm": "layernorm",
    "norm_eps": settings.take("layer_norm_epsilon", 1e-5),
    "mlp": settings.choose("activation_function", "gelu_new", _ACTIVATIONS),
    "bias": "all",
    "query_pre_attn_scalar": 0.0 if settings.take("scale_attn_weights", True) else 1.0,
    "tied_embeddings": settings.take("tie_word_embeddings", True),
  }


def _write(config: DecoderConfig) -> dict[str, Any]:
  return {
    "vocab_size": config.vocab_size,
    "n_positions": config.max_positions,
    "n_embd": config.d_model,
    "n_layer": config.num_layers,
    "n_head": config.num_heads,
    "n_inner": config.mlp_dim,
    "activation_function": "gelu" if config.mlp == "gelu_exact" else "gelu_new",
    "layer_norm_epsilon": config.norm_eps,
    "scale_attn_weights": config.query_pre_attn_scalar != 1,
    "tie_word_embeddings": config.tied_embeddings,
  }


def _tensors() -> tuple[Tensor, ...]:
  block = "transformer.h.{}."
  rows = [
    Tensor("transformer.wte.weight", "embed/embedding"),
    Tensor("transformer.wpe.weight", "embed/positions"),
    Tensor("lm_head.weight", "output/embedding"),
  ]
  # These maps are stored as [in, out], as ours are.
  for theirs, ours in (("weight", "kernel"), ("bias", "bias")):
    for part, name in enumerate("qkv"):
      path = f"layers/attention/{name}_proj/{ours}"
      rows.append(Tensor(f"{block}attn.c_attn.{theirs}", path, part=Part(part, 3)))
    rows += [
      Tensor(f"{block}attn.c_proj.{theirs}", f"layers/attention/o_proj/{ours}"),
      Tensor(f"{block}mlp.c_fc.{theirs}", f"layers/mlp/up_proj/{ours}"),
      Tensor(f"{block}mlp.c_proj.{theirs}", f"layers/mlp/down_proj/{ours}"),
    ]
  for theirs, ours in (("weight", "scale"), ("bias", "bias")):
    rows += [
      Tensor(f"{block}ln_1.{theirs}", f"layers/norms/attention/x/{ours}"),
      Tensor(f"{block}ln_2.{theirs}", f"layers/norms/mlp/x/{ours}"),
      Tensor(f"transformer.ln_f.{theirs}", f"final_norm/{ours}"),
    ]
  return tuple(rows)


GPT2 = Family(
  model_type="gpt2",
  architecture="GPT2LMHeadModel",
  read=_read,
  write=_write,
  tensors=_tensors(),
  prefix="transformer.",
  buffers=(".attn.bias", ".attn.masked_bias"),
)
