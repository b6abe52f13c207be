"""GPT-NeoX, and with it Pythia."""

from typing import Any

from resjax.interop.huggingface.families.family import Family, rope_settings
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Part, Tensor
from resjax.models.config import DecoderConfig

_ACTIVATIONS = {
  "gelu": "gelu_exact",
  "gelu_new": "gelu",
  "gelu_pytorch_tanh": "gelu",
  "gelu_fast": "gelu",
}


def _read(settings: Settings) -> dict[str, Any]:
  settings.expect("attention_bias", True)
  # transformers 4 also writes, and does not read, what other families call them.
  settings.expect("rope_theta", settings.take("rotary_emb_base", 10000))
  settings.expect("partial_rotary_factor", settings.take("rotary_pct", 0.25))
  heads = settings.take("num_attention_heads")
  return settings.rope(0.25, names=("rotary_emb_base", "rotary_pct")) | {
    "vocab_size": settings.take("vocab_size"),
    "max_positions": settings.take("max_position_embeddings"),
    "num_layers": settings.take("num_hidden_layers"),
    "d_model": settings.take("hidden_size"),
    "num_heads": heads,
    "num_kv_heads": heads,
    "head_dim": 0,
    "mlp_dim": settings.take("intermediate_size"),
    "norm": "layernorm",
    "norm_eps": settings.take("layer_norm_eps", 1e-5),
    "mlp": settings.choose("hidden_act", "gelu", _ACTIVATIONS),
    "bias": "all",
    "parallel": settings.take("use_parallel_residual", True),
    "tied_embeddings": settings.take("tie_word_embeddings", False),
  }


def _write(config: DecoderConfig) -> dict[str, Any]:
  return {
    "vocab_size": config.vocab_size,
    "max_position_embeddings": config.max_positions,
    "num_hidden_layers": config.num_layers,
    "hidden_size": config.d_model,
    "num_attention_heads": config.num_heads,
    "intermediate_size": config.mlp_dim,
    "layer_norm_eps": config.norm_eps,
    "hidden_act": "gelu_new" if config.mlp == "gelu" else "gelu",
    "use_parallel_residual": config.parallel,
    "attention_bias": True,
    "rotary_emb_base": config.rope_theta,
    "rotary_pct": config.rope_fraction,
    "rope_scaling": rope_settings(config)["rope_scaling"],
    "tie_word_embeddings": config.tied_embeddings,
  }


def _tensors() -> tuple[Tensor, ...]:
  layer = "gpt_neox.layers.{}."
  rows = [
    Tensor("gpt_neox.embed_in.weight", "embed/embedding"),
    Tensor("embed_out.weight", "output/embedding"),
  ]
  for theirs, ours, turned in (("weight", "kernel", True), ("bias", "bias", False)):
    for part, name in enumerate("qkv"):
      path, where = f"layers/attention/{name}_proj/{ours}", Part(part, 3, per_head=True)
      rows.append(Tensor(f"{layer}attention.query_key_value.{theirs}", path, turned, part=where))
    rows += [
      Tensor(f"{layer}attention.dense.{theirs}", f"layers/attention/o_proj/{ours}", turned),
      Tensor(f"{layer}mlp.dense_h_to_4h.{theirs}", f"layers/mlp/up_proj/{ours}", turned),
      Tensor(f"{layer}mlp.dense_4h_to_h.{theirs}", f"layers/mlp/down_proj/{ours}", turned),
    ]
  for theirs, ours in (("weight", "scale"), ("bias", "bias")):
    rows += [
      Tensor(f"{layer}input_layernorm.{theirs}", f"layers/norms/attention/x/{ours}"),
      Tensor(f"{layer}post_attention_layernorm.{theirs}", f"layers/norms/mlp/x/{ours}"),
      Tensor(f"gpt_neox.final_layer_norm.{theirs}", f"final_norm/{ours}"),
    ]
  return tuple(rows)


GPT_NEOX = Family(
  model_type="gpt_neox",
  architecture="GPTNeoXForCausalLM",
  read=_read,
  write=_write,
  tensors=_tensors(),
  prefix="gpt_neox.",
  buffers=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
)
