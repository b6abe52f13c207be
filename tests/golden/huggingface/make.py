"""Small random models of every family, made with transformers, with their logits and greedy texts.

  python -m tests.golden.huggingface.make       (needs torch and transformers; writes the folders)

Nothing in them is neutral: norms and biases are random, key heads fewer than query heads, windows
shorter than the texts, soft caps as small as the scores. `reference.npz` holds tokens [B, T], their
float32 logits [B, T, V], and 64 greedy tokens after a prompt.
"""

import json
import pathlib
import shutil
import tempfile

import numpy as np

FOLDER = pathlib.Path(__file__).parent
VOCAB, PROMPT, NEW = 61, 6, 64

_COMMON = {
  "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 3,
  "num_attention_heads": 4, "max_position_embeddings": 96, "bos_token_id": 0, "eos_token_id": 1,
  "pad_token_id": None,
}  # fmt: skip
_LLAMA = _COMMON | {"num_key_value_heads": 2, "rms_norm_eps": 1e-5}
_LLAMA3 = {
  "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip

# Name -> class of transformers, its settings, dtype of the file, largest shard.
MODELS = {
  "gpt2": ("GPT2", {
    "vocab_size": VOCAB, "n_embd": 24, "n_inner": 36, "n_layer": 3, "n_head": 3, "n_positions": 96,
    "bos_token_id": 0, "eos_token_id": 1,
  }, "float32", None),
  "gpt_neox": ("GPTNeoX", _COMMON | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.67},
  }, "float16", None),
  "gpt_neox_sequential": ("GPTNeoX", _COMMON | {
    "use_parallel_residual": False, "num_attention_heads": 3, "tie_word_embeddings": True,
    "rope_parameters": {
      "rope_type": "linear", "factor": 2.0, "rope_theta": 100.0, "partial_rotary_factor": 0.5,
    },
  }, "bfloat16", None),
  "llama": ("Llama", _LLAMA | {"attention_bias": True}, "float32", 30_000),
  "llama3": ("Llama", _LLAMA | {"rope_parameters": _LLAMA3, "head_dim": 10}, "bfloat16", None),
  "mistral": ("Mistral", _LLAMA | {"sliding_window": 7, "head_dim": 8}, "bfloat16", 20_000),
  "qwen2": ("Qwen2", _LLAMA | {
    "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2,
    "tie_word_embeddings": True,
  }, "bfloat16", None),
  "qwen3": ("Qwen3", _LLAMA | {"head_dim": 8}, "float16", None),
  "gemma": ("Gemma", _LLAMA | {"head_dim": 10, "num_key_value_heads": 1}, "bfloat16", None),
  "gemma2": ("Gemma2", _LLAMA | {
    "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 5,
    "attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0,
  }, "float32", None),
  "gemma3": ("Gemma3", _LLAMA | {
    "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 5, "final_logit_softcapping": 4.0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
      "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    },
  }, "bfloat16", None),
  "olmo2": ("Olmo2", _LLAMA, "bfloat16", None),
  "olmo3": ("Olmo3", _LLAMA | {
    "sliding_window": 7, "num_hidden_layers": 4,
    "rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
      "full_attention": {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
        "original_max_position_embeddings": 24, "attention_factor": 1.3,
      },
    },
  }, "float16", None),
  "smollm3": ("SmolLM3", _LLAMA | {
    "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 9,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
  }, "bfloat16", None),
  "starcoder2": ("Starcoder2", {k: v for k, v in _LLAMA.items() if k != "rms_norm_eps"} | {
    "sliding_window": 8, "norm_epsilon": 1e-4, "num_key_value_heads": 1,
  }, "bfloat16", None),
  "stablelm": ("StableLm", _COMMON | {
    "num_key_value_heads": 2, "use_qkv_bias": True, "hidden_size": 32,
  }, "bfloat16", None),
  "stablelm_parallel": ("StableLm", _COMMON | {
    "num_key_value_heads": 4, "use_parallel_residual": True, "partial_rotary_factor": 0.67,
  }, "bfloat16", None),
  "phi3": ("Phi3", _LLAMA | {
    "sliding_window": 11, "hidden_size": 32, "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 96, "max_position_embeddings": 192,
    "rope_parameters": {
      "rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.2, 1.5],
      "long_factor": [1.0, 3.0, 9.0],
    },
  }, "bfloat16", 20_000),
  "mixtral": ("Mixtral", _LLAMA | {
    "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7, "head_dim": 8,
    "intermediate_size": 20,
  }, "bfloat16", 20_000),
  "qwen3_moe": ("Qwen3Moe", _LLAMA | {
    "num_hidden_layers": 4, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True,
    "moe_intermediate_size": 12, "decoder_sparse_step": 1, "mlp_only_layers": [0], "head_dim": 8,
  }, "float16", None),
  "olmoe": ("Olmoe", _LLAMA | {
    "num_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 16,
  }, "bfloat16", None),
}  # fmt: skip


def build(name: str, seed: int = 0):
  """Returns the model of a name, every parameter drawn anew, as its file will have it."""
  import torch
  import transformers

  family, settings, dtype, _ = MODELS[name]
  text = "Text" if family == "Gemma3" else ""
  settings = getattr(transformers, f"{family}{text}Config")(**settings)
  settings._attn_implementation = "eager"  # the only one with soft caps
  cls = getattr(transformers, "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")
  model = cls(settings)
  torch.manual_seed(seed)
  with torch.no_grad():
    for path, p in model.named_parameters():
      is_norm = "norm" in path or "ln_" in path
      centre = 1.0 if is_norm and path.endswith("weight") and "gemma" not in name else 0.0
      spread = 0.3 if is_norm or path.endswith("bias") else 2.0 * p.shape[-1] ** -0.5
      spread *= 0.3 if "emb" in path or "wte" in path else 1.0  # tied, they repeat their token
      p.copy_((centre + spread * torch.randn(p.shape)).to(getattr(torch, dtype)).float())
  return model.eval()


def reference(model) -> dict[str, np.ndarray]:
  """Returns tokens, their logits, and what greedy decoding gives after their first ones."""
  import torch

  tokens = torch.tensor(np.random.default_rng(0).integers(0, VOCAB, (2, 24)))
  with torch.no_grad():
    logits = model(tokens).logits.numpy()
    greedy, gap = tokens[:, :PROMPT], np.inf
    for _ in range(NEW):
      last = model(greedy, use_cache=False).logits[:, -1]
      best = torch.topk(last, 2).values
      gap = min(gap, float((best[:, 0] - best[:, 1]).min()))
      greedy = torch.cat([greedy, last.argmax(-1, keepdim=True)], dim=1)
  return {"tokens": tokens.numpy(), "logits": logits, "greedy": greedy.numpy(), "gap": gap}


def is_telling(found: dict[str, np.ndarray]) -> bool:
  """Whether greedy texts neither hang on rounding nor repeat themselves at once."""
  different = min(len(set(row[PROMPT:])) for row in found["greedy"].tolist())
  return found["gap"] > 1e-3 and different > 8


def write(name: str, folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Writes the folder of a model, of the first seed that is telling; returns its reference."""
  import torch

  _, _, dtype, shard = MODELS[name]
  models = (build(name, seed) for seed in range(100))
  model, found = next((model, found) for model in models if is_telling(found := reference(model)))
  stored = model.to(getattr(torch, dtype))
  stored.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
  np.savez_compressed(folder / "reference.npz", **found)
  return found


def main() -> None:
  """Writes all folders anew."""
  for name in MODELS:
    with tempfile.TemporaryDirectory() as scratch:
      found = write(name, pathlib.Path(scratch))
      shutil.rmtree(FOLDER / name, ignore_errors=True)
      shutil.copytree(scratch, FOLDER / name)
    size = sum(path.stat().st_size for path in (FOLDER / name).iterdir())
    largest = round(float(np.abs(found["logits"]).max()), 2)
    print(json.dumps({"name": name, "bytes": size, "gap": found["gap"], "largest logit": largest}))


if __name__ == "__main__":
  main()
