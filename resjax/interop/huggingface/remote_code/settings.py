"""The settings of config.json for a decoder with remote code, and the decoder of such settings."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from flax import nnx

from resjax import combinators
from resjax.base import typed_json
from resjax.data import MOST_ROWS
from resjax.interop.huggingface.remote_code import assembly
from resjax.models import DecoderConfig, normed_views
from resjax.nn import Rope, is_gated

MODEL_TYPE = "resjax_"  # what the model types of such folders begin with
_RECORD = "resjax_config"
_Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
_ACTIVATIONS = {
  "swiglu": "silu", "geglu": "gelu_pytorch_tanh", "gelu": "gelu_pytorch_tanh", "gelu_exact": "gelu",
}  # fmt: skip
_SLIDING, _FULL = "sliding_attention", "full_attention"


def obstacles(config: DecoderConfig) -> list[str]:
  """Returns a phrase for each option of a decoder that the code does not express.

  It expresses all fields of the config, and of a combinator the options that its template knows.
  """
  name, known = config.residual.name, assembly.names()
  if name not in known:
    return [f"config.model.residual.name={name!r} has no template; there are {', '.join(known)}"]
  template, defaults = assembly.template(name), combinators.options(name)
  other = set(defaults).difference(template.options, template.free)
  if config.short_swa.window and _reads_or_mixes_more(config):
    window = config.short_swa.window
    return [
      f"config.model.short_swa.window={window}, there 0 with the options of {name} that mix tokens "
      "or read other views than x"
    ]
  return [
    f"config.model.residual.{name}.{option}={value!r}, there {defaults[option]!r}"
    for option, value in config.residual.options.items()
    if option in other and value != defaults[option]
  ]


def parts(config: DecoderConfig) -> tuple[str, ...]:
  """Returns the names of the parts of layers besides attention and MLP, see `files`."""
  there = {
    "views": normed_views(config, abstract_combinator(config))["attention"] != ("x",),
    "parallel": config.parallel,
    "values": config.value_residual != "none" or config.value_mixing != "none",
    "norm_gate": config.norm_gate.rank > 0,
    "experts": bool(config.routed_layers),
    "short_swa": config.short_swa.window > 0,
    "windows": len(set(config.layer_windows) - {0}) > 1,
    "longrope": any(rope.short_length for rope in _ropes(config)),
  }
  return tuple(name for name, has in there.items() if has)


def _reads_or_mixes_more(config: DecoderConfig) -> bool:
  """Returns whether the first site has other views than x, or the combinator keeps past tokens."""
  combinator = abstract_combinator(config)
  views = combinator.view_names(config.sites[0])
  return views != ("x",) or combinator.decode_cache(1, config.dtype) is not None


def check(config: DecoderConfig) -> None:
  """Raises a ValueError that names the options of a decoder that the code does not express."""
  if found := obstacles(config):
    raise ValueError(f"no code expresses this decoder: {'; '.join(found)}")


def settings(config: DecoderConfig) -> dict[str, Any]:
  """Returns all settings of config.json, except for tokens and the dtype of tensors.

  Beside the settings that the code reads, there is a record of the whole config, from which
  `read_settings` rebuilds it.

  Raises:
    ValueError: the code does not express the decoder.
  """
  check(config)
  name = config.residual.name
  configuration, modeling, _ = assembly.modules(name)
  model = assembly.class_name(name)
  classes = {
    "AutoConfig": f"{configuration}.{model}Config",
    "AutoModel": f"{modeling}.{model}Model",
    "AutoModelForCausalLM": f"{modeling}.{model}ForCausalLM",
  }
  values = {
    "model_type": MODEL_TYPE + name,
    "architectures": [f"{model}ForCausalLM"],
    "auto_map": classes,
    "use_cache": True,
    "initializer_range": config.init_std,
    _RECORD: dataclasses.asdict(config),
  }
  return _as_json(values | _function(config))


def _function(config: DecoderConfig) -> dict[str, Any]:
  """Returns the settings that the code reads."""
  return (
    _sizes(config) | _norms_and_maps(config) | _attention(config) | _parts(config)
    | _residual(config)
  )  # fmt: skip


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
  """Returns values as they come back from a file."""
  return json.loads(json.dumps(values))


def _sizes(config: DecoderConfig) -> dict[str, Any]:
  return {
    "vocab_size": config.vocab_size,
    "hidden_size": config.d_model,
    "intermediate_size": config.mlp_dim,
    "num_hidden_layers": config.num_layers,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "max_position_embeddings": config.max_positions,
    "tie_word_embeddings": config.tied_embeddings,
    "embedding_multiplier": config.d_model**0.5 if config.embed_scale else 1.0,
    "logit_scale": 1 / config.width_ratio,
    "branch_divisor": config.depth_ratio,
    "final_logit_softcapping": config.logit_softcap or None,
  }


def _norms_and_maps(config: DecoderConfig) -> dict[str, Any]:
  combinator = abstract_combinator(config)
  return {
    "norm_type": config.norm,
    "norm_eps": config.norm_eps,
    "norm_bias": config.bias == "all" or config.norm_bias,
    "pre_norm": combinator.pre_norm and config.pre_norm,
    "post_norm": config.post_norm,
    "final_norm": combinator.final_norm,
    "qk_norm": config.qk_norm_over if config.qk_norm else "none",
    "attention_views": list(normed_views(config, combinator)["attention"]),
    "attention_bias": config.bias != "none",
    "attention_out_bias": config.bias in ("attention", "all"),
    "hidden_act": _ACTIVATIONS[config.mlp],
    "mlp_gated": is_gated(config.mlp),
    "mlp_bias": config.bias == "all",
  }


def _attention(config: DecoderConfig) -> dict[str, Any]:
  ropes = _ropes(config)
  return {
    "position_embedding_type": config.positions,
    "rope_frequencies": _frequencies(config, config.head_dim),
    "rope_gains": [rope.scaling.gain() for rope in ropes],
    "layer_ropes": [None if rope is None else ropes.index(rope) for rope in config.layer_ropes],
    "layer_types": [_SLIDING if size else _FULL for size in config.layer_windows],
    "sliding_window": max(config.windows) or None,
    "attention_scaling": config.scores.scale_for(config.head_dim),
    "attn_logit_softcapping": config.attention_softcap or None,
  }


def _ropes(config: DecoderConfig) -> list[Rope]:
  return [rope for rope in dict.fromkeys(config.layer_ropes) if rope is not None]


def _frequencies(config: DecoderConfig, width: int) -> list:
  """Returns the angles per position of each rotation, with `longrope` in short and long rows."""
  short, long = (
    [rope.frequencies(width, is_long).tolist() for rope in _ropes(config)]
    for is_long in (False, True)
  )
  has_both = any(rope.short_length for rope in _ropes(config))
  return list(zip(short, long, strict=True)) if has_both else short


def _parts(config: DecoderConfig) -> dict[str, Any]:
  short_width, moe = config.d_model // config.short_swa_heads, config.moe
  found: dict[str, dict[str, Any]] = {
    "norm_gate": {
      "norm_gate_rank": config.norm_gate.rank,
      "norm_gate_scale": 2.0 if config.norm_gate.form == "neutral" else 1.0,
    },
    "values": {
      "value_residual": config.value_residual,
      "value_gate": config.value_gate.gate,
      "gated_layers": config.num_gated_layers,
      "value_sources": list(config.value_sources),
      "value_share": _has_value_share(config),
    },
    "short_swa": {
      "short_swa_window": config.short_swa.window,
      "short_swa_heads": config.short_swa_heads,
      "short_swa_scaling": config.short_swa_scores.scale_for(short_width),
      "short_swa_frequencies": _frequencies(config, short_width) if config.short_swa.window else [],
    },
    "experts": {
      "mlp_layer_types": [
        "sparse" if layer in config.routed_layers else "dense" for layer in range(config.num_layers)
      ],
      "num_experts": moe.num_experts,
      "num_experts_per_tok": moe.num_experts_per_tok,
      "moe_intermediate_size": config.expert_dim,
      "shared_intermediate_size": moe.num_shared_experts * config.expert_dim,
      "scoring_func": moe.score,
      "norm_topk_prob": moe.norm_topk_prob,
      "routed_scaling_factor": moe.routed_scaling_factor,
      "selection_bias": moe.selection_bias,
    },
    "windows": {"layer_windows": list(config.layer_windows)},
    "longrope": {"rope_short_lengths": [rope.short_length for rope in _ropes(config)]},
  }
  chosen = parts(config)
  return {key: value for part in found if part in chosen for key, value in found[part].items()}


def _has_value_share(config: DecoderConfig) -> bool:
  mixes = config.value_mixing == "depth" and config.depth_values.zero_init
  return mixes and config.num_layers > 1


def _residual(config: DecoderConfig) -> dict[str, Any]:
  name = config.residual.name
  template = assembly.template(name)
  options = combinators.options(name) | dict(config.residual.options)
  chosen = {template.setting(option): options[option] for option in template.options}
  return {"sites": list(config.sites), **chosen}


def abstract_combinator(config: DecoderConfig) -> combinators.Combinator:
  """Returns the combinator with shapes for parameters."""
  return nnx.eval_shape(
    lambda: combinators.build(
      config.residual.name,
      num_layers=config.num_layers,
      d_model=config.d_model,
      sites=config.sites,
      rngs=nnx.Rngs(0),
      scaled_init=True,
      **config.residual.options,
    )
  )


def read_settings(values: Mapping[str, Any], where: str, dtype: str = "float32") -> DecoderConfig:
  """Returns the config of the decoder that has these settings, with activations of a dtype.

  Raises:
    ValueError: there is no record of a decoder, it has a setting that is not known, the code does
      not express it, or a setting differs from what the record says.
  """
  if _RECORD not in values:
    raise ValueError(
      f"{where} has no {_RECORD}, by which model_type={values['model_type']!r} is read"
    )
  given = values[_RECORD]
  record = _with_tuples(typed_json.convert(given, DecoderConfig, f"{where}: {_RECORD}"))
  _check_names(given, dataclasses.asdict(record), f"{where}: {_RECORD}")
  # `resize_token_embeddings` of transformers changes this setting, and the tensors.
  rows = typed_json.convert(values.get("vocab_size"), _Rows, f"{where}: vocab_size")
  record = dataclasses.replace(record, vocab_size=rows)
  try:
    check(record)
    wanted = _as_json(_function(record)) | {"model_type": MODEL_TYPE + record.residual.name}
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from None
  for name, value in wanted.items():
    if not _same(values.get(name), value):
      raise ValueError(
        f"{where}: {name}={values.get(name)!r} differs from {value!r}, which {_RECORD} asks for"
      )
  return dataclasses.replace(record, dtype=dtype, attention="auto")


def _check_names(given: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
  """Raises a ValueError that names a setting of a record which is not known here."""
  for name, value in given.items():
    if name not in known:
      raise ValueError(
        f"{where}.{name} is not known to this version of resjax; load the folder with the version "
        "that wrote it, which its README.md names"
      )
    if isinstance(value, dict):
      _check_names(value, known[name], f"{where}.{name}")


def _same(given: Any, wanted: Any) -> bool:
  """Returns whether settings are the same, up to how machines round powers and logarithms."""
  if isinstance(given, list) and isinstance(wanted, list):
    return len(given) == len(wanted) and all(map(_same, given, wanted))
  if isinstance(given, float) and isinstance(wanted, float):
    return math.isclose(given, wanted, rel_tol=1e-5)
  return given == wanted


def _with_tuples(config: DecoderConfig) -> DecoderConfig:
  """Returns a config that is read from JSON, where options that are tuples came as lists."""
  options = {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in config.residual.options.items()
  }
  return dataclasses.replace(config, residual=dataclasses.replace(config.residual, options=options))
