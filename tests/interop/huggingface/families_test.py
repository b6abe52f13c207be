"""The newer families: config.json files as they are published, and files with images."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from resjax.base.sharding import Layout
from resjax.interop import huggingface
from resjax.models.config import LayerRope, MoEConfig
from resjax.models.parameters import parameters
from resjax.nn.rope_scaling import RopeScaling
from tests.interop.huggingface.config_test import write
from tests.interop.huggingface.export_test import assert_same
from tests.interop.huggingface.golden_test import FOLDER

# The files of these models, without settings that do not matter.
FILES = {
  "google/gemma-3-1b-pt": {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": None,
    "cache_implementation": "hybrid", "final_logit_softcapping": None, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
    "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
    "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
    "sliding_window_pattern": 6, "vocab_size": 262144,
  },
  "google/gemma-3-4b-pt": {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
    "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {
      "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152, "model_type": "siglip"},
  },
  "allenai/OLMo-2-1124-7B": {
    "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
    "tie_word_embeddings": False, "vocab_size": 100352,
  },
  "allenai/Olmo-3-1025-7B": {
    "architectures": ["Olmo3ForCausalLM"], "attention_bias": False, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 65536,
    "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "sliding_window": 4096, "vocab_size": 100278,
    "rope_scaling": {
      "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
      "original_max_position_embeddings": 8192, "rope_type": "yarn",
    },
    "rope_theta": 500000, "tie_word_embeddings": False,
  },
  "HuggingFaceTB/SmolLM3-3B": {
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
    "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16, "num_hidden_layers": 36,
    "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False,
    "vocab_size": 128256,
  },
  "bigcode/starcoder2-3b": {
    "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "embedding_dropout": 0.1,
    "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042,
    "intermediate_size": 12288, "max_position_embeddings": 16384, "mlp_type": "default",
    "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
    "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
    "residual_dropout": 0.1, "rope_theta": 999999.4420358813, "sliding_window": 4096,
    "use_bias": True, "vocab_size": 49152,
  },
  "stabilityai/stablelm-2-1_6b": {
    "architectures": ["StableLmForCausalLM"], "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 5632, "layer_norm_eps": 1e-05, "max_position_embeddings": 4096,
    "model_type": "stablelm", "num_attention_heads": 32, "num_hidden_layers": 24,
    "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000,
    "tie_word_embeddings": False, "use_qkv_bias": True, "vocab_size": 100352,
  },
  "microsoft/Phi-3-mini-4k-instruct": {
    "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "hidden_act": "silu",
    "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047,
    "tie_word_embeddings": False, "vocab_size": 32064,
  },
  "mistralai/Mixtral-8x7B-v0.1": {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
    "vocab_size": 32000,
  },
  "Qwen/Qwen3-30B-A3B": {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
    "use_sliding_window": False, "vocab_size": 151936,
  },
  "allenai/OLMoE-1B-7B-0924": {
    "architectures": ["OlmoeForCausalLM"], "attention_bias": False, "clip_qkv": None,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024,
    "max_position_embeddings": 4096, "model_type": "olmoe",
    "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 16, "num_key_value_heads": 16, "output_router_logits": False,
    "rope_scaling": None, "rope_theta": 10000.0, "router_aux_loss_coef": 0.01,
    "tie_word_embeddings": False, "vocab_size": 50304,
  },
}  # fmt: skip
LOCAL, GLOBAL = LayerRope(1e4), LayerRope(1e6)
YARN = RopeScaling("yarn", 8.0, original_max_positions=8192, attention_factor=1.2079441541679836)
CHOICES = {
  "google/gemma-3-1b-pt": {
    "windows": (512, 512, 512, 512, 512, 0), "qk_norm": True,
    "ropes": (LOCAL, LOCAL, LOCAL, LOCAL, LOCAL, GLOBAL), "tied_embeddings": True,
  },
  "google/gemma-3-4b-pt": {
    "ropes": (*(LOCAL,) * 5, LayerRope(1e6, RopeScaling("linear", 8.0))), "vocab_size": 262208,
    "num_heads": 8, "num_kv_heads": 4, "head_dim": 256, "max_positions": 131072,
  },
  "allenai/OLMo-2-1124-7B": {"pre_norm": False, "qk_norm_over": "heads", "rope_theta": 5e5},
  "allenai/Olmo-3-1025-7B": {
    "windows": (4096, 4096, 4096, 0), "ropes": (*(LayerRope(5e5),) * 3, LayerRope(5e5, YARN)),
  },
  "HuggingFaceTB/SmolLM3-3B": {"ropes": (*(LayerRope(5e6),) * 3, LayerRope(0.0)), "windows": (0,)},
  "bigcode/starcoder2-3b": {"bias": "all", "mlp": "gelu", "windows": (4096,), "norm_eps": 1e-5},
  "stabilityai/stablelm-2-1_6b": {"bias": "qkv", "norm_bias": True, "rope_fraction": 0.25},
  "microsoft/Phi-3-mini-4k-instruct": {"windows": (2047,), "mlp": "swiglu", "norm_eps": 1e-5},
  "mistralai/Mixtral-8x7B-v0.1": {"moe": MoEConfig(8, 2), "windows": (0,), "rope_theta": 1e6},
  "Qwen/Qwen3-30B-A3B": {
    "moe": MoEConfig(128, 8, expert_dim=768), "qk_norm": True, "windows": (0,),
  },
  "allenai/OLMoE-1B-7B-0924": {
    "moe": MoEConfig(64, 8, norm_topk_prob=False), "qk_norm_over": "heads", "norm_eps": 1e-5,
  },
}  # fmt: skip
# The published numbers of parameters, without those that read images.
SIZES = {
  "google/gemma-3-1b-pt": 999_885_952,
  "google/gemma-3-4b-pt": 3_880_263_168,
  "allenai/OLMo-2-1124-7B": 7_298_617_344,
  "allenai/Olmo-3-1025-7B": 7_298_011_136,
  "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
  "bigcode/starcoder2-3b": 3_030_371_328,
  "stabilityai/stablelm-2-1_6b": 1_644_515_328,
  "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
  "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
  "Qwen/Qwen3-30B-A3B": 30_532_122_624,
  "allenai/OLMoE-1B-7B-0924": 6_919_161_856,
}


@pytest.mark.parametrize("name", FILES)
def test_published_files(name, tmp_path):
  config = huggingface.read_config(write(tmp_path, FILES[name]))
  assert {key: getattr(config, key) for key in CHOICES[name]} == CHOICES[name]
  found = parameters(config, Layout()).values()
  assert sum(math.prod(parameter.shape) for parameter in found) == SIZES[name]
  family, settings = huggingface.find_family(config)
  kind = FILES[name]["model_type"]
  # Phi-3 with its first length of rows is a Mistral, which is written first.
  assert family.model_type == {"gemma3": "gemma3_text", "phi3": "mistral"}.get(kind, kind)
  assert huggingface.read_config(write(tmp_path, settings)) == config


def test_a_file_of_gemma_3_with_images(tmp_path):
  """Names and settings as transformers 4 and 5 write them; what reads images is left out."""
  text = json.loads((FOLDER / "gemma3/config.json").read_text())
  tensors = load_file(FOLDER / "gemma3/model.safetensors")
  outer = FILES["google/gemma-3-4b-pt"] | {"text_config": text}
  want = huggingface.load(FOLDER / "gemma3")
  for number, prefix in enumerate(("language_model.model.", "model.language_model.")):
    folder = tmp_path / str(number)
    folder.mkdir()
    write(folder, outer)
    named = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    place = prefix.removesuffix("language_model.").removesuffix("language_model.model.")
    named |= {
      f"{place}{part}.weight": np.ones(3, np.float32)
      for part in ("vision_tower.a", "multi_modal_projector.b")
    }
    save_file(named, folder / "model.safetensors")
    assert_same(want, huggingface.load(folder))
  with pytest.raises(ValueError, match=r"audio_config=.* is not known for model_type='gemma3'"):
    huggingface.read_config(write(tmp_path, outer | {"audio_config": {"a": 1}}))
  with pytest.raises(ValueError, match="text_config: altup=2 is not known for model_type='gemma3_"):
    huggingface.read_config(write(tmp_path, outer | {"text_config": text | {"altup": 2}}))


def test_longrope_of_phi_3(tmp_path):
  base = FILES["microsoft/Phi-3-mini-4k-instruct"]
  factors = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
  want = RopeScaling(
    "longrope", 32.0, original_max_positions=4096,
    short_factors=(1.0,) * 48, long_factors=(2.0,) * 48,
  )  # fmt: skip
  for kind in ("longrope", "su", "yarn"):
    values = base | {"rope_scaling": {"type": kind, **factors}, "max_position_embeddings": 131072}
    config = huggingface.read_config(write(tmp_path, values))
    assert config.rope_scaling == want
  _, settings = huggingface.find_family(config)
  assert set(settings["rope_scaling"]) == {"type", "short_factor", "long_factor"}
  assert settings["original_max_position_embeddings"] == 4096
  assert huggingface.read_config(write(tmp_path, settings)) == config


@pytest.mark.parametrize(
  ("change", "first_dense", "every", "routed"),
  [
    ({}, 0, 1, range(48)),
    # As in Qwen3-Coder-30B-A3B.
    (
      {"shared_expert_intermediate_size": 0, "qkv_bias": False, "use_qk_norm": True},
      0,
      1,
      range(48),
    ),
    ({"mlp_only_layers": [1, 0]}, 2, 1, range(2, 48)),
    ({"decoder_sparse_step": 3}, 0, 3, range(2, 48, 3)),
    ({"decoder_sparse_step": 3, "mlp_only_layers": [0, 2, 9]}, 5, 3, range(5, 48, 3)),
    ({"decoder_sparse_step": 49}, 0, 1, ()),
    ({"mlp_only_layers": [*range(48)]}, 0, 1, ()),
    ({"num_experts": 0}, 0, 1, ()),
  ],
)
def test_layers_of_qwen3_with_experts(change, first_dense, every, routed, tmp_path):
  config = huggingface.read_config(write(tmp_path, FILES["Qwen/Qwen3-30B-A3B"] | change))
  assert (config.moe.first_dense, config.moe.every) == (first_dense, every)
  assert config.routed_layers == tuple(routed)
  family, settings = huggingface.find_family(config)
  assert family.model_type == ("qwen3_moe" if routed else "qwen3")
  assert huggingface.read_config(write(tmp_path, settings)) == config


@pytest.mark.parametrize(
  ("name", "change", "message"),
  [
    (
      "google/gemma-3-1b-pt",
      {"attn_logit_softcapping": 50.0},
      "attn_logit_softcapping=50.0 is not",
    ),
    (
      "google/gemma-3-1b-pt",
      {"rope_parameters": {"rope_theta": 1.0}},
      "rope_parameters.rope_theta",
    ),
    (
      "allenai/Olmo-3-1025-7B",
      {"rope_parameters": {"full_attention": {"rope_type": "yarn", "truncate": False}}},
      "full_attention.truncate=False is not supported; allowed: True",
    ),
    ("HuggingFaceTB/SmolLM3-3B", {"no_rope_layers": [1, 0]}, "one for each of 36 layers"),
    (
      "HuggingFaceTB/SmolLM3-3B",
      {"layer_types": ["sliding_attention"] * 36},
      "use_sliding_window=False is not supported; allowed: True with sliding_attention",
    ),
    ("bigcode/starcoder2-3b", {"norm_type": "rms_norm"}, "norm_type='rms_norm' is not supported"),
    ("stabilityai/stablelm-2-1_6b", {"qk_layernorm": True}, "qk_layernorm=True is not supported"),
    (
      "microsoft/Phi-3-mini-4k-instruct",
      {"rope_scaling": {"type": "linear", "factor": 2.0}},
      "rope_type='linear' is not supported; allowed: default, longrope",
    ),
    ("allenai/OLMoE-1B-7B-0924", {"clip_qkv": 8.0}, "clip_qkv=8.0 is not supported; allowed: None"),
    ("allenai/OLMoE-1B-7B-0924", {"num_experts": 0}, "num_experts=0 is not .*allowed: at least 1"),
    ("allenai/OLMoE-1B-7B-0924", {"num_experts": 4}, "num_experts_per_tok=8 must be in 1..4"),
    ("Qwen/Qwen3-30B-A3B", {"num_local_experts": 8}, "num_local_experts=8 is not .*allowed: 128"),
    (
      "Qwen/Qwen3-30B-A3B",
      {"mlp_only_layers": [0, 3]},
      r"mlp_only_layers=\[0, 3\] is not supported; allowed: layers before all that have experts",
    ),
    (
      "Qwen/Qwen3-30B-A3B",
      {"shared_expert_intermediate_size": 5632},
      "shared_expert_intermediate_size=5632 is not supported; allowed: 0",
    ),
    ("Qwen/Qwen3-30B-A3B", {"use_qk_norm": False}, "use_qk_norm=False is not supported"),
    ("mistralai/Mixtral-8x7B-v0.1", {"kv_lora_rank": 512}, "it has latent attention"),
    ("mistralai/Mixtral-8x7B-v0.1", {"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
  ],
)
def test_refusals(name, change, message, tmp_path):
  with pytest.raises(ValueError, match=message) as caught:
    huggingface.read_config(write(tmp_path, FILES[name] | change))
  assert "\n" not in str(caught.value)
