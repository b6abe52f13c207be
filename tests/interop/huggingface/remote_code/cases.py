"""Decoders that are written with code: those of both styles, and every case of every template."""

from resjax.interop.huggingface import remote_code
from resjax.models.config import (
  DepthValuesConfig,
  LayerRope,
  MoEConfig,
  MupConfig,
  NormGateConfig,
  ShortSWAConfig,
  ValueGateConfig,
)
from resjax.nn.rope_scaling import RopeScaling
from tests.helpers import decoders, systems
from tests.interop.huggingface.remote_code.folders import Case

YARN = RopeScaling("yarn", 4.0, original_max_positions=16)


def longrope(length):
  """Wavelengths of short rows, of at most so many tokens, and of longer ones."""
  factors = {"short_factors": (1.0, 1.5, 2.0), "long_factors": (2.0, 4.0, 8.0)}
  return RopeScaling("longrope", 2.0, original_max_positions=length, **factors)


# Rows of pretraining that are longer than the texts here, and ones that are shorter.
LONG, SHORT = longrope(90), longrope(5)
# What decoders without a residual system of their own may have, in both styles.
DECODERS = (
  Case("standard", changes={"num_heads": 3, "num_kv_heads": 1, "bias": "qkv", "qk_norm": True}),
  Case("standard", changes={"windows": (5, 0), "bias": "attention", "tied_embeddings": False}),
  Case(
    "standard",
    changes={
      "mlp": "geglu", "embed_scale": True, "post_norm": True, "windows": (3, 0),
      "attention_softcap": 2.0, "logit_softcap": 3.0, "query_pre_attn_scalar": 7.0,
    },
  ),
  Case("standard", {}, "gpt2", {"positions": "rope", "rope_fraction": 0.5, "head_dim": 8}),
  Case(
    "gate",
    changes={
      "ropes": (LayerRope(100.0), LayerRope(0.0), LayerRope(1e4, YARN)), "pre_norm": False,
      "post_norm": True, "qk_norm": True, "qk_norm_over": "heads", "windows": (0, 6),
    },
  ),
  Case("standard", {}, "gpt2", {"mlp": "gelu_exact", "bias": "none"}),
  Case("gate", changes={"rope_scaling": RopeScaling("yarn", 4.0, original_max_positions=8)}),
  Case("standard", changes={"rope_scaling": LONG}),
  Case("gate", changes={"ropes": (LayerRope(1e3, SHORT), LayerRope(50.0)), "windows": (7, 0)}),
  Case("standard", changes={"windows": (3, 9, 0, 5)}),
  Case("attn_res", changes={"windows": (12, 4), "rope_scaling": SHORT}),
)  # fmt: skip

_LEARNED = {"value_residual": "learned"}
_DEPTH = {"value_mixing": "depth", "depth_values": DepthValuesConfig(stride=2, recent=1)}
_STARTS_PLAIN = {**_DEPTH, "depth_values": DepthValuesConfig(zero_init=True)}
_GATED = {"value_residual": "gated"}
_SHORT = {"short_swa": ShortSWAConfig(4, 2)}
_GATES = {"norm_gate": NormGateConfig(3, "published")}
# As in DeepSeek-V3 without its groups.
_DEEPSEEK = MoEConfig(
  6, 3, 12, num_shared_experts=2, score="sigmoid", routed_scaling_factor=2.5, selection_bias=True,
  first_dense=1,
)  # fmt: skip
_EXPERTS = {"moe": MoEConfig(5, 2)}
# What layers may have besides attention and MLP, alone, together, and beside several systems.
PARTS = (
  Case("standard", {}, "llama", {"parallel": True, "norm_gate": NormGateConfig(2)}),
  Case("standard", {}, "gpt2", {"parallel": True, "post_norm": True}),
  Case("standard", {}, "llama", _LEARNED),
  Case("gate", {"granularity": "token"}, "gpt2", {"value_residual": "fixed", "parallel": True}),
  Case("attn_res", {"views": "qkv"}, "llama", _GATED | _GATES),
  *(
    Case("standard", {}, style, _GATED | {"value_gate": ValueGateConfig(gate, count)})
    for gate, count, style in (
      ("sigmoid", 2, "llama"), ("tanh", 1, "gpt2"), ("identity", 0, "llama"),
      ("softmax", 0, "gpt2"), ("softmax_sigmoid", 9, "llama"),
    )
  ),
  Case("standard", {}, "llama", _DEPTH | {"qk_norm": True, "query_pre_attn_scalar": 7.0}),
  Case("deep_delta", {"compressor": "token"}, "gpt2", _STARTS_PLAIN | _LEARNED),
  Case("standard", {}, "llama", _SHORT | {"qk_norm": True, "windows": (5, 0), "post_norm": True}),
  Case("standard", {}, "gpt2", {"short_swa": ShortSWAConfig(1)}),
  Case("gate", {"scope": "layer"}, "llama", _SHORT | _GATES | {"parallel": True}),
  Case("block_attn_res", {"layers_per_block": 2}, "llama", {"parallel": True}),
  Case("block_attn_res", {"layers_per_block": 2}, "llama", _SHORT | _GATES | _DEPTH | _LEARNED),
  Case("attenuation", {"layers": (1, -1), "cut_sites": ("short_swa",)}, "gpt2", _SHORT),
  Case("gemma3n_laurel", {"rank": 4}, "llama", _SHORT | {"bias": "all"}),
  Case("standard", {}, "gpt2", _SHORT | {"mup": MupConfig(8, 2)}),
  Case("block_attn_res", {"layers_per_block": 2}, "llama", {"moe": _DEEPSEEK}),
  Case("standard", {}, "llama", {"moe": MoEConfig(4, 3, norm_topk_prob=False, every=2)}),
  Case("mhc", {}, "llama", _EXPERTS | {"windows": (5, 0), "qk_norm": True}),
  Case("muddformer", {}, "llama", {"moe": MoEConfig(4, 1, norm_topk_prob=False)}),
  Case("deepnorm", {}, "gpt2", _EXPERTS | {"bias": "none"}),
  Case("gate", {"scope": "layer"}, "llama", _EXPERTS | _SHORT | _GATES | {"parallel": True}),
)  # fmt: skip


def _residuals():
  """Yields the cases of tests/helpers/systems: defaults in both styles, others in turn."""
  for number, case in enumerate(systems.CASES):
    changes = {"depth": "loop"} if case.loop_only else {}
    spans = [case.options.get(name, 0) for name in ("layers_per_block", "dilation", "period")]
    changes |= {"num_layers": max(4, *spans)}
    styles = decoders.STYLES if not case.options else decoders.STYLES[number % 2 :][:1]
    for style in styles if case.name in remote_code.names() else ():
      yield Case(case.name, dict(case.options), style, changes)


RESIDUALS = tuple(_residuals())
CASES = DECODERS + PARTS + RESIDUALS
