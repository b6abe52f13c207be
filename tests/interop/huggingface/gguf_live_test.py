"""GGUF files as transformers itself reads them, where torch and transformers are."""

import json

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from resjax.interop import huggingface
from resjax.models import Decoder
from tests.helpers.gguf_files import settings, tensors, write
from tests.interop.huggingface.golden_test import logits

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.23")

TOKENS = np.arange(24).reshape(2, 12) % 61
TEXTS = ["the depth of a layer", "the  width", "a stream and   the", "layer <img> of", "</s>the"]


def exported(place, config):
  """The tensors of a decoder with these settings."""
  (place / "config").mkdir()
  (place / "config" / "config.json").write_text(json.dumps(config))
  decoder = Decoder(huggingface.read_config(place / "config"), rngs=nnx.Rngs(0))
  huggingface.export(decoder, place / "exported")
  return load_file(place / "exported" / "model.safetensors")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_parameters_and_logits(name, tmp_path):
  """Of what transformers takes from a file: it knows no softcaps of one's own and no scale."""
  config = settings(name)
  if name == "llama":  # transformers does not read that attention has biases
    config |= {"attention_bias": False}
  if name.startswith("gemma"):
    config |= {"query_pre_attn_scalar": 256, "attn_logit_softcapping": None}
    config |= {"final_logit_softcapping": None, "sliding_window": 64}
  if name == "gemma2":
    config |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
  if name == "gemma3":
    ropes = {"full_attention": 1e6, "sliding_attention": 1e4}
    ropes = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in ropes.items()}
    config |= {"rope_parameters": ropes, "layer_types": ["sliding_attention"] * 3}
  if name == "qwen3":  # transformers takes its own width of heads
    config |= {"head_dim": 128}
  weights = {k: v for k, v in tensors(name).items() if name != "llama" or "bias" not in k}
  weights = exported(tmp_path, config) if name == "qwen3" else weights
  write(tmp_path / "model.gguf", name, config, weights)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, gguf_file="model.gguf", attn_implementation="eager", dtype=torch.float32
  ).eval()
  ours = huggingface.load(tmp_path / "model.gguf")
  with torch.no_grad():
    expected = theirs(torch.tensor(TOKENS)).logits.numpy()
  np.testing.assert_allclose(logits(ours, TOKENS), expected, atol=2e-5)
  table = theirs.model.embed_tokens.weight.detach().numpy()
  np.testing.assert_array_equal(ours.embed.embedding, table)


CASES = [("llama", "llama"), ("llama", "gpt2"), ("gemma2", "llama")]


@pytest.mark.parametrize(("name", "words"), CASES)
def test_tokens(name, words, tmp_path):
  more = {} if name == "llama" else {"tokenizer__ggml__add_space_prefix": False}
  write(tmp_path / "model.gguf", name, words=words, **more)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
  ours = huggingface.tokenizer(tmp_path / "model.gguf")
  for text in TEXTS:
    expected = theirs.encode(text, add_special_tokens=False)
    assert ours.model.encode(text, add_special_tokens=False).ids == expected, text
    around = theirs.encode(text)
    assert tuple(around[: len(around) - len(expected)]) == ours.around.before
