"""config.json files as they are published, and settings that the decoder does not support."""

import json
import math

import pytest

from resjax.base.sharding import Layout
from resjax.interop import huggingface
from resjax.models.parameters import parameters
from resjax.nn.rope_scaling import RopeScaling

# The files of these models, without settings that do not matter.
PUBLISHED = {
  "openai-community/gpt2": {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True, "vocab_size": 50257,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
  },
  "openai-community/gpt2-medium": {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1024, "n_head": 16,
    "n_layer": 24, "n_positions": 1024, "n_special": 0, "predict_special_tokens": True,
    "resid_pdrop": 0.1, "summary_type": "cls_index", "vocab_size": 50257,
  },
  "EleutherAI/gpt-neox-20b": {
    "architectures": ["GPTNeoXForCausalLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 0,
    "eos_token_id": 0, "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 6144,
    "initializer_range": 0.02, "intermediate_size": 24576, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 64,
    "num_hidden_layers": 44, "rotary_emb_base": 10000, "rotary_pct": 0.25,
    "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True, "vocab_size": 50432,
  },
  "EleutherAI/pythia-70m": {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
    "hidden_act": "gelu", "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox",
    "num_attention_heads": 8, "num_hidden_layers": 6, "rotary_emb_base": 10000, "rotary_pct": 0.25,
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.24.0",
    "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
  },
  "huggyllama/llama-7b": {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 2048, "max_sequence_length": 2048,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "pad_token_id": 0,
    "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.29.0.dev0", "use_cache": True, "vocab_size": 32000,
  },
  "meta-llama/Llama-3.2-1B": {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {
      "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 128256,
  },
  "HuggingFaceTB/SmolLM2-135M": {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576,
    "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": True,
    "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": None, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 49152,
  },
  "mistralai/Mistral-7B-v0.1": {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000,
  },
  "Qwen/Qwen2.5-0.5B": {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
  },
  "Qwen/Qwen3-0.6B-Base": {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151643, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
  },
  "google/gemma-2b": {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu",
    "hidden_activation": None, "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
    "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "vocab_size": 256000,
  },
  "google/gemma-2-2b": {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
    "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
    "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "torch_dtype": "float32", "use_cache": True, "vocab_size": 256000,
  },
  "google/gemma-2-9b": {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
    "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 16,
    "num_hidden_layers": 42, "num_key_value_heads": 8, "pad_token_id": 0,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "sliding_window_size": 4096, "torch_dtype": "float32",
    "use_cache": True, "vocab_size": 256000,
  },
}  # fmt: skip
# The published numbers of parameters, which count tied embeddings once.
SIZES = {
  "openai-community/gpt2": 124_439_808,
  "openai-community/gpt2-medium": 354_823_168,
  "EleutherAI/gpt-neox-20b": 20_554_567_680,
  "EleutherAI/pythia-70m": 70_426_624,
  "huggyllama/llama-7b": 6_738_415_616,
  "meta-llama/Llama-3.2-1B": 1_235_814_400,
  "HuggingFaceTB/SmolLM2-135M": 134_515_008,
  "mistralai/Mistral-7B-v0.1": 7_241_732_096,
  "Qwen/Qwen2.5-0.5B": 494_032_768,
  "Qwen/Qwen3-0.6B-Base": 596_049_920,
  "google/gemma-2b": 2_506_172_416,
  "google/gemma-2-2b": 2_614_341_888,
  "google/gemma-2-9b": 9_241_705_984,
}
LLAMA3 = RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)
CHOICES = {
  "openai-community/gpt2": {"mlp": "gelu", "bias": "all", "tied_embeddings": True, "mlp_dim": 3072},
  "openai-community/gpt2-medium": {"num_layers": 24, "head_dim": 64},
  "EleutherAI/gpt-neox-20b": {"mlp": "gelu", "parallel": True, "tied_embeddings": False},
  "EleutherAI/pythia-70m": {"mlp": "gelu_exact", "parallel": True, "rope_fraction": 0.25},
  "huggyllama/llama-7b": {"num_kv_heads": 32, "head_dim": 128, "bias": "none"},
  "meta-llama/Llama-3.2-1B": {"rope_scaling": LLAMA3, "tied_embeddings": True},
  "HuggingFaceTB/SmolLM2-135M": {"num_kv_heads": 3, "init_std": 1 / 24, "rope_theta": 1e5},
  "mistralai/Mistral-7B-v0.1": {"windows": (4096,), "num_kv_heads": 8},
  "Qwen/Qwen2.5-0.5B": {"bias": "qkv", "windows": (0,), "rope_theta": 1e6},
  "Qwen/Qwen3-0.6B-Base": {"qk_norm": True, "head_dim": 128, "bias": "none", "windows": (0,)},
  "google/gemma-2b": {"mlp": "geglu", "embed_scale": True, "tied_embeddings": True},
  "google/gemma-2-2b": {
    "windows": (4096, 0), "attention_softcap": 50.0, "logit_softcap": 30.0, "post_norm": True,
    "query_pre_attn_scalar": 256.0,
  },
  "google/gemma-2-9b": {"windows": (4096, 0), "mlp": "geglu", "tied_embeddings": True},
}  # fmt: skip


def write(folder, values):
  (folder / "config.json").write_text(json.dumps(values))
  return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files(name, tmp_path):
  config = huggingface.read_config(write(tmp_path, PUBLISHED[name]))
  assert {key: getattr(config, key) for key in CHOICES[name]} == CHOICES[name]
  found = parameters(config, Layout()).values()
  assert sum(math.prod(parameter.shape) for parameter in found) == SIZES[name]
  family, settings = huggingface.find_family(config)
  assert huggingface.read_config(write(tmp_path, settings)).layer_windows == config.layer_windows
  assert family.model_type == PUBLISHED[name]["model_type"]


def test_old_and_new_spellings_are_the_same(tmp_path):
  base = PUBLISHED["meta-llama/Llama-3.2-1B"]
  old = huggingface.read_config(write(tmp_path, base))
  new = {key: value for key, value in base.items() if not key.startswith("rope_")}
  new["rope_parameters"] = base["rope_scaling"] | {"rope_theta": base["rope_theta"]}
  assert huggingface.read_config(write(tmp_path, new)) == old
  assert huggingface.read_config(write(tmp_path, new | {"rope_scaling": {}})) == old
  neox = PUBLISHED["EleutherAI/pythia-70m"]
  both = huggingface.read_config(
    write(tmp_path, neox | {"partial_rotary_factor": 0.25, "rope_theta": 10000})
  )
  assert both == huggingface.read_config(write(tmp_path, neox))
  older = base | {"rope_scaling": {"type": "linear", "factor": 2.0}}
  assert huggingface.read_config(write(tmp_path, older)).rope_scaling == RopeScaling("linear", 2.0)


def test_windows_of_some_layers(tmp_path):
  base = PUBLISHED["Qwen/Qwen2.5-0.5B"] | {"num_hidden_layers": 4}
  change = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}
  config = huggingface.read_config(write(tmp_path, base | change))
  assert config.layer_windows == (0, 0, 0, 9)
  change["layer_types"] = ["sliding_attention", "full_attention"] * 2
  config = huggingface.read_config(write(tmp_path, base | change))
  assert config.windows == (9, 0)


@pytest.mark.parametrize(
  "name, change, message",
  [
    ("openai-community/gpt2", {"scale_attn_by_inverse_layer_idx": True}, "True .*allowed: False"),
    ("openai-community/gpt2", {"activation_function": "relu"}, "'relu' .*allowed: gelu_new, "),
    ("EleutherAI/pythia-70m", {"attention_bias": False}, "attention_bias=False is not supported"),
    ("EleutherAI/pythia-70m", {"partial_rotary_factor": 0.5}, "0.5 is not .*allowed: 0.25"),
    ("huggyllama/llama-7b", {"mlp_bias": True}, "mlp_bias=True is not supported; allowed: False"),
    ("huggyllama/llama-7b", {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
    (
      "huggyllama/llama-7b",
      {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
      "rope_type='dynamic' is not supported; allowed: default, linear, llama3, yarn, longrope",
    ),
    (
      "huggyllama/llama-7b",
      {"rope_scaling": {"type": "linear"}},
      "rope_scaling.factor=None is not supported",
    ),
    (
      "huggyllama/llama-7b",
      {"quantization_config": {"bits": 4}},
      "quantization_config=.* is not known for model_type='llama', and may change",
    ),
    ("huggyllama/llama-7b", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not"),
    (
      "google/gemma-2-2b",
      {"use_bidirectional_attention": True},
      "use_bidirectional_attention=True",
    ),
    ("google/gemma-2-2b", {"layer_types": ["linear_attention"] * 26}, "'linear_attention' is not"),
    ("google/gemma-2-2b", {"layer_types": ["full_attention"]}, "one for each of 26 layers"),
    ("google/gemma-2-2b", {"hidden_size": None}, "has no hidden_size"),
    ("Qwen/Qwen2.5-0.5B", {"num_attention_heads": 13}, "config.json: .*d_model=896 must be"),
    ("Qwen/Qwen2.5-0.5B", {"moe_layers": 3}, "moe_layers=3 is not known"),
  ],
)
def test_what_would_change_the_function_is_refused_by_name(name, change, message, tmp_path):
  folder = write(tmp_path, PUBLISHED[name] | change)
  with pytest.raises(ValueError, match=message) as caught:
    huggingface.read_config(folder)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "name, change, message",
  [
    (
      "huggyllama/llama-7b",
      {"num_hidden_layers": 10**9},
      "num_hidden_layers is 1000000000: .*4096",
    ),
    ("huggyllama/llama-7b", {"num_hidden_layers": "32"}, "num_hidden_layers is '32': expected int"),
    ("huggyllama/llama-7b", {"num_hidden_layers": 32.5}, "num_hidden_layers is 32.5"),
    ("huggyllama/llama-7b", {"num_hidden_layers": True}, "num_hidden_layers is True"),
    ("huggyllama/llama-7b", {"max_position_embeddings": -1}, "max_position_embeddings is -1"),
    ("huggyllama/llama-7b", {"max_position_embeddings": 0}, "max_position_embeddings is 0"),
    ("huggyllama/llama-7b", {"hidden_size": 0}, "hidden_size is 0: expected int >= 1"),
    ("huggyllama/llama-7b", {"hidden_size": [4096]}, "hidden_size: expected int"),
    ("huggyllama/llama-7b", {"vocab_size": 2**40}, "vocab_size is 1099511627776"),
    ("huggyllama/llama-7b", {"rms_norm_eps": 0}, "rms_norm_eps is 0: expected float > 0"),
    ("huggyllama/llama-7b", {"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'"),
    ("huggyllama/llama-7b", {"rope_theta": -1.0}, "rope_theta is -1.0: expected float > 0"),
    ("huggyllama/llama-7b", {"rope_theta": float("inf")}, "holds no JSON"),
    ("huggyllama/llama-7b", {"rope_theta": 1e300}, "rope_theta is 1e[+]300"),
    ("huggyllama/llama-7b", {"initializer_range": float("nan")}, "holds no JSON"),
    ("huggyllama/llama-7b", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
    ("huggyllama/llama-7b", {"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
    ("huggyllama/llama-7b", {"rope_scaling": {"factor": -2}}, "rope_scaling.factor is -2"),
    ("huggyllama/llama-7b", {"rope_scaling": {"factor": [2]}}, "rope_scaling.factor: expected"),
    ("huggyllama/llama-7b", {"architectures": "Llama"}, "architectures is 'Llama'"),
    ("huggyllama/llama-7b", {"model_type": ["llama"]}, "model_type: expected str"),
    ("huggyllama/llama-7b", {"hidden_act": {}}, "hidden_act: expected str"),
    ("mistralai/Mistral-7B-v0.1", {"sliding_window": -1}, "sliding_window is -1"),
    ("google/gemma-2-2b", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    ("google/gemma-2-2b", {"attn_logit_softcapping": -1}, "attn_logit_softcapping is -1"),
    ("google/gemma-2-2b", {"layer_types": 3}, "layer_types is 3"),
    ("openai-community/gpt2", {"n_layer": 10**9}, "n_layer is 1000000000"),
    ("EleutherAI/pythia-70m", {"rotary_pct": 1.5}, "rotary_pct is 1.5: expected float <= 1"),
  ],
)
def test_types_and_ranges_of_settings(name, change, message, tmp_path):
  folder = write(tmp_path, PUBLISHED[name] | change)
  with pytest.raises(
    ValueError, match=rf"config.json:? .*{message}|config.json {message}"
  ) as caught:
    huggingface.read_config(folder)
  assert "\n" not in str(caught.value)


# Settings beyond those of a family, as published files have them.
HARMLESS = {
  "_attn_implementation_autoset": True, "_flash_attn_2_enabled": True, "activation_dropout": 0.1,
  "attention_softmax_in_fp32": True, "attn_implementation": "flash_attention_2", "bf16": True,
  "auto_map": {"AutoModelForCausalLM": "modeling_x.X"}, "base_model": "x/y", "cls_token_id": 3,
  "diversity_penalty": 0.0, "do_sample": True, "dropout": 0.1, "early_stopping": False,
  "emb_dropout": 0.0, "encoder_no_repeat_ngram_size": 0, "fp16": False, "id2label": {"0": "A"},
  "gradient_checkpointing": True, "is_encoder_decoder": False, "layerdrop": 0.0,
  "length_penalty": 1, "max_length": 20, "max_new_tokens": 2048, "min_length": 0,
  "mlp_only_layers": [], "model_max_length": 8192, "no_repeat_ngram_size": 0, "num_beams": 1,
  "num_return_sequences": 1, "output_router_logits": False, "pretraining_tp": 1,
  "pruned_heads": {}, "repetition_penalty": 1.1, "rope_interleaved": False, "seq_length": 2048,
  "temperature": 0.7, "tensor_parallel_degree": 8, "tie_encoder_decoder": False,
  "tokenizer_model_max_length": 4096, "top_k": 50, "top_p": 0.9, "unk_token_id": 0,
  "unsloth_fixed": True, "use_flash_attn": True, "use_mrope": False,
}  # fmt: skip
REFUSED = {
  "alibi": True, "attention_multiplier": 0.0078125, "dim_model_base": 256,
  "embedding_multiplier": 12, "first_k_dense_replace": 1, "layer_norm_epsilon": 1e-5,
  "logits_scaling": 8.0, "num_nextn_predict_layers": 1, "qk_layernorm": True, "qkv_bias": True,
  "residual_multiplier": 0.22, "rope_interleaved": True, "rope_ratio": 50, "rotary_dim": 64,
  "scale_depth": 1.4, "scale_emb": 12, "sliding_window": 4096, "use_logn_attn": True,
  "use_qk_norm": True, "value_residual": 1,
}  # fmt: skip


def test_published_settings_that_change_nothing(tmp_path):
  assert len(HARMLESS) + len(REFUSED) >= 60
  base = PUBLISHED["meta-llama/Llama-3.2-1B"]
  want = huggingface.read_config(write(tmp_path, base))
  assert huggingface.read_config(write(tmp_path, base | HARMLESS)) == want


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_name_and_can_be_ignored(name, tmp_path):
  base = PUBLISHED["meta-llama/Llama-3.2-1B"]
  want = huggingface.read_config(write(tmp_path, base))
  folder = write(tmp_path, base | {name: REFUSED[name]})
  with pytest.raises(
    ValueError, match=rf"config.json: {name}=.* is not known for .*'llama'"
  ) as told:
    huggingface.read_config(folder)
  assert f"ignore=('{name}',), on the command line --hf_ignore={name}" in str(told.value)
  assert "\n" not in str(told.value)
  assert huggingface.read_config(folder, ignore=(name,)) == want


def test_what_decides_cannot_be_ignored(tmp_path):
  folder = write(tmp_path, PUBLISHED["meta-llama/Llama-3.2-1B"])
  with pytest.raises(
    ValueError, match=r"rope_theta decides what .* so that it cannot be ignored; "
  ):
    huggingface.read_config(folder, ignore=("rope_theta", "other"))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      {"model_type": "deepseek_v3", "n_routed_experts": 256, "kv_lora_rank": 512},
      r"'deepseek_v3' is not supported: it has experts of another kind \(n_routed_experts\) and "
      r"latent attention \(kv_lora_rank\), which resjax does not compute; allowed: llama, ",
    ),
    (
      {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632},
      r"'qwen2_moe' is not supported: it has a gate of shared experts \(shared_expert_inter",
    ),
    (
      {"model_type": "qwen3_next", "text_config": {"linear_num_key_heads": 16}},
      r"it has linear attention or a state \(linear_num_key_heads\), which",
    ),
    (
      {"num_local_experts": 8},
      r"num_local_experts=8 is not known .*: it has experts of another kind",
    ),
    ({"quantization_config": {"bits": 4}}, r"it has packed weights \(quantization_config\), which"),
    ({"model_type": "falcon"}, "'falcon' is not supported; allowed"),
  ],
)
def test_refusals_have_the_reason(change, message, tmp_path):
  folder = write(tmp_path, PUBLISHED["huggyllama/llama-7b"] | change)
  with pytest.raises(ValueError, match=message) as caught:
    huggingface.read_config(folder)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "text, message", [("{", "holds no JSON"), ("[]", "expected object, got array")]
)
def test_no_object(text, message, tmp_path):
  (tmp_path / "config.json").write_text(text)
  with pytest.raises(ValueError, match=message):
    huggingface.read_config(tmp_path)
