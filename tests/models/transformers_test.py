"""The decoder with the weights of random Hugging Face models gives their logits."""

import numpy as np
import pytest

from tests.helpers import decoders

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 31, "num_layers": 3, "d_model": 16, "mlp_dim": 24}
LINEAR = {
  "attention/q_proj": "self_attn.q_proj", "attention/k_proj": "self_attn.k_proj",
  "attention/v_proj": "self_attn.v_proj", "attention/o_proj": "self_attn.o_proj",
  "mlp/gate_proj": "mlp.gate_proj", "mlp/up_proj": "mlp.up_proj", "mlp/down_proj": "mlp.down_proj",
}  # fmt: skip


def randomised(model):
  """Every parameter drawn anew, norms and biases too; and numpy copies."""
  torch.manual_seed(0)
  with torch.no_grad():
    for name, p in model.named_parameters():
      p.copy_((1.0 if "norm" in name or "ln_" in name else 0.0) + 0.3 * torch.randn(p.shape))
  return model.eval(), {name: p.detach().numpy() for name, p in model.named_parameters()}


def assert_same_logits(config, arrays, model):
  decoder = decoders.load(decoders.decoder(config, random=False), arrays)
  tokens = decoders.tokens(config)
  with torch.no_grad():
    want = model(torch.tensor(np.asarray(tokens))).logits.numpy()
  got = decoder.logits(decoder(tokens))
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
  assert np.abs(want).max() > 1


def test_gpt2():
  settings = transformers.GPT2Config(
    vocab_size=31, n_positions=32, n_layer=3, n_embd=16, n_head=4, n_inner=24
  )
  model, p = randomised(transformers.GPT2LMHeadModel(settings))

  def stacked(name):
    return np.stack([p[f"transformer.h.{layer}.{name}"] for layer in range(3)])

  arrays = {
    "embed/embedding": p["transformer.wte.weight"],
    "embed/positions": p["transformer.wpe.weight"],
  }
  for part, ours in (("weight", "kernel"), ("bias", "bias")):
    qkv = np.split(stacked(f"attn.c_attn.{part}"), 3, axis=-1)
    arrays |= {f"layers/attention/{n}_proj/{ours}": a for n, a in zip("qkv", qkv, strict=True)}
    arrays[f"layers/attention/o_proj/{ours}"] = stacked(f"attn.c_proj.{part}")
    arrays[f"layers/mlp/up_proj/{ours}"] = stacked(f"mlp.c_fc.{part}")
    arrays[f"layers/mlp/down_proj/{ours}"] = stacked(f"mlp.c_proj.{part}")
  for part, ours in (("weight", "scale"), ("bias", "bias")):
    arrays[f"layers/norms/attention/x/{ours}"] = stacked(f"ln_1.{part}")
    arrays[f"layers/norms/mlp/x/{ours}"] = stacked(f"ln_2.{part}")
    arrays[f"final_norm/{ours}"] = p[f"transformer.ln_f.{part}"]
  config = decoders.config("gpt2", num_kv_heads=4, **SIZES)
  assert_same_logits(config, arrays, model)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_llama_style(family, tied):
  settings = getattr(transformers, f"{family}Config")(
    vocab_size=31, max_position_embeddings=32, num_hidden_layers=3, hidden_size=16,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=24,
    rms_norm_eps=1e-5, tie_word_embeddings=tied,
  )  # fmt: skip
  model, p = randomised(getattr(transformers, f"{family}ForCausalLM")(settings))

  def stacked(name):
    return np.stack([p[f"model.layers.{layer}.{name}.weight"] for layer in range(3)])

  arrays = {
    f"layers/{ours}/kernel": stacked(theirs).swapaxes(1, 2) for ours, theirs in LINEAR.items()
  }
  arrays |= {
    "embed/embedding": p["model.embed_tokens.weight"],
    "layers/norms/attention/x/scale": stacked("input_layernorm"),
    "layers/norms/mlp/x/scale": stacked("post_attention_layernorm"),
    "final_norm/scale": p["model.norm.weight"],
  }
  if not tied:
    arrays["output/embedding"] = p["lm_head.weight"]
  if family == "Qwen3":
    arrays["layers/attention/q_norm/scale"] = stacked("self_attn.q_norm")
    arrays["layers/attention/k_norm/scale"] = stacked("self_attn.k_norm")
  theta = settings.rope_parameters["rope_theta"]
  config = decoders.config(
    "llama", num_heads=4, num_kv_heads=2, head_dim=8, norm_eps=1e-5, rope_theta=theta,
    qk_norm=family == "Qwen3", tied_embeddings=tied, **SIZES,
  )  # fmt: skip
  assert_same_logits(config, arrays, model)
