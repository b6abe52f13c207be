"""GPT-2 and GPT-NeoX (and with it Pythia), which store queries, keys and values in one tensor."""

from collections.abc import Mapping
from typing import Any

from resjax.interop.huggingface.families.family import Family, read_fields, write_fields
from resjax.interop.huggingface.rope_settings import read_rope, rope_settings
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Part, Tensor
from resjax.models import DecoderConfig

_ACTIVATIONS = {
  "gelu_new": "gelu",
  "gelu_pytorch_tanh": "gelu",
  "gelu_fast": "gelu",
  "gelu": "gelu_exact",
}
# The settings of each family and the fields of `DecoderConfig` that they become.
_GPT2_NAMES = {
  "vocab_size": "vocab_size",
  "n_positions": "max_positions",
  "n_embd": "d_model",
  "n_layer": "num_layers",
  "n_head": "num_heads",
  "n_inner": "mlp_dim",
  "layer_norm_epsilon": "norm_eps",
  "tie_word_embeddings": "tied_embeddings",
}
_NEOX_NAMES = {
  "vocab_size": "vocab_size",
  "max_position_embeddings": "max_positions",
  "hidden_size": "d_model",
  "num_hidden_layers": "num_layers",
  "num_attention_heads": "num_heads",
  "intermediate_size": "mlp_dim",
  "layer_norm_eps": "norm_eps",
  "use_parallel_residual": "parallel",
  "tie_word_embeddings": "tied_embeddings",
}


def _read_common(
  settings: Settings, names: Mapping[str, str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
  fields = read_fields(settings, names, defaults)
  more = {"num_kv_heads": fields["num_heads"], "head_dim": 0, "norm": "layernorm", "bias": "all"}
  return fields | more


def _read_gpt2(settings: Settings) -> dict[str, Any]:
  settings.expect("scale_attn_by_inverse_layer_idx", False)
  settings.expect("add_cross_attention", False)
  settings.take("reorder_and_upcast_attn", False)  # It changes the rounding alone.
  defaults = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": 4 * settings.take("n_embd", 768),
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
  }
  return _read_common(settings, _GPT2_NAMES, defaults) | {
    "positions": "learned",
    "mlp": settings.choose("activation_function", "gelu_new", _ACTIVATIONS),
    "query_pre_attn_scalar": 0.0 if settings.take("scale_attn_weights", True) else 1.0,
  }


def _write_gpt2(config: DecoderConfig) -> dict[str, Any]:
  return write_fields(config, _GPT2_NAMES) | {
    "activation_function": "gelu" if config.mlp == "gelu_exact" else "gelu_new",
    "scale_attn_weights": config.query_pre_attn_scalar != 1,
  }


def _read_neox(settings: Settings) -> dict[str, Any]:
  settings.expect("attention_bias", True)
  # transformers 4 also writes these two under the names of other families, and does not read them.
  settings.expect("rope_theta", settings.take("rotary_emb_base", 10000))
  settings.expect("partial_rotary_factor", settings.take("rotary_pct", 0.25))
  defaults = {"layer_norm_eps": 1e-5, "use_parallel_residual": True, "tie_word_embeddings": False}
  return _read_common(settings, _NEOX_NAMES, defaults) | {
    **read_rope(settings, fraction=0.25, names=("rotary_emb_base", "rotary_pct")),
    "mlp": settings.choose("hidden_act", "gelu", _ACTIVATIONS),
  }


def _write_neox(config: DecoderConfig) -> dict[str, Any]:
  return write_fields(config, _NEOX_NAMES) | {
    "hidden_act": "gelu_new" if config.mlp == "gelu" else "gelu",
    "attention_bias": True,
    "rotary_emb_base": config.rope_theta,
    "rotary_pct": config.rope_fraction,
    "rope_scaling": rope_settings(config)["rope_scaling"],
  }


def _tensors(
  embeddings: Mapping[str, str],
  layer: str,
  attention: tuple[str, str],
  mlp: tuple[str, str],
  norms: tuple[str, str],
  final_norm: str,
  *,
  transposed: bool = False,
  per_head: bool = False,
) -> tuple[Tensor, ...]:
  """Returns the tensors of a family.

  Args:
    embeddings: the name of the tensor of each embedding, by the path of the parameter.
    layer: the beginning of the names of the tensors of a layer.
    attention: the names of the map to queries, keys and values, and of the output map.
    mlp: the names of the two maps of the MLP.
    norms: the names of the norms before attention and MLP.
    final_norm: the name of the last norm.
    transposed: whether the kernels of maps are stored as [out, in].
    per_head: whether queries, keys and values alternate from head to head.
  """

  def widths(config: DecoderConfig) -> tuple[int, ...]:
    return (config.head_dim * (1 if per_head else config.num_heads),) * 3

  rows = [Tensor(name, path) for path, name in embeddings.items()]
  paths = ("attention/o_proj", "mlp/up_proj", "mlp/down_proj")
  maps = dict(zip(paths, (attention[1], *mlp), strict=True))
  for ending, leaf, turned in (("weight", "kernel", transposed), ("bias", "bias", False)):
    for part, letter in enumerate("qkv"):
      path, where = f"layers/attention/{letter}_proj/{leaf}", Part(part, widths)
      rows.append(Tensor(f"{layer}{attention[0]}.{ending}", path, turned, part=where))
    for path, name in maps.items():
      rows.append(Tensor(f"{layer}{name}.{ending}", f"layers/{path}/{leaf}", turned))
  for ending, leaf in (("weight", "scale"), ("bias", "bias")):
    for site, name in zip(("attention", "mlp"), norms, strict=True):
      rows.append(Tensor(f"{layer}{name}.{ending}", f"layers/norms/{site}/x/{leaf}"))
    rows.append(Tensor(f"{final_norm}.{ending}", f"final_norm/{leaf}"))
  return tuple(rows)


_GPT2_TENSORS = _tensors(
  {
    "embed/embedding": "transformer.wte.weight",
    "embed/positions": "transformer.wpe.weight",
    "output/embedding": "lm_head.weight",
  },
  "transformer.h.{}.",
  attention=("attn.c_attn", "attn.c_proj"),
  mlp=("mlp.c_fc", "mlp.c_proj"),
  norms=("ln_1", "ln_2"),
  final_norm="transformer.ln_f",
)
_NEOX_TENSORS = _tensors(
  {"embed/embedding": "gpt_neox.embed_in.weight", "output/embedding": "embed_out.weight"},
  "gpt_neox.layers.{}.",
  attention=("attention.query_key_value", "attention.dense"),
  mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
  norms=("input_layernorm", "post_attention_layernorm"),
  final_norm="gpt_neox.final_layer_norm",
  transposed=True,
  per_head=True,
)
_GPT2_FILES: dict[str, Any] = {
  "prefix": "transformer.",
  "buffers": (".attn.bias", ".attn.masked_bias"),
}
_NEOX_FILES: dict[str, Any] = {
  "prefix": "gpt_neox.",
  "buffers": (".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
}

GPT2 = Family("gpt2", "GPT2LMHeadModel", _read_gpt2, _write_gpt2, _GPT2_TENSORS, **_GPT2_FILES)
GPT_NEOX = Family(
  "gpt_neox", "GPTNeoXForCausalLM", _read_neox, _write_neox, _NEOX_TENSORS, **_NEOX_FILES
)
