"""transformers itself: models made afresh are imported, and what we export it loads.

Where torch is installed; golden_test.py holds the importing to folders that were made before.
"""

import json

import numpy as np
import pytest

from resjax.data.tokenizer import ByteTokenizer, train_bpe
from resjax.interop import huggingface
from tests.golden.huggingface import make, rope
from tests.helpers import decoders
from tests.interop.huggingface.golden_test import compare, logits

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def theirs(folder, tokens):
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, attn_implementation="eager", dtype=torch.float32
  ).eval()
  with torch.no_grad():
    return model(torch.tensor(np.asarray(tokens))).logits.numpy()


@pytest.mark.parametrize("name", make.MODELS)
def test_made_afresh_and_back(name, tmp_path):
  found = make.write(name, tmp_path / "theirs")
  decoder = huggingface.load(tmp_path / "theirs")
  difference, kl, wrong = compare(decoder, found)
  print(f"{name}: logits {difference:.1e}, KL {kl:.1e}, {wrong} of 128 greedy tokens")
  assert difference <= 1e-4
  assert kl <= 1e-6
  assert wrong == 0
  huggingface.export(decoder, tmp_path / "ours", shard_bytes=15_000)
  again = theirs(tmp_path / "ours", found["tokens"])
  print(f"{name}: exported, {np.abs(again - found['logits']).max():.1e}")
  # The same model with the same numbers.
  np.testing.assert_allclose(again, found["logits"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
  "style, changes",
  [
    ("llama", {}),
    ("llama", {"bias": "attention", "tied_embeddings": False}),
    ("llama", {"num_heads": 3, "num_kv_heads": 1, "head_dim": 6, "windows": (4,)}),
    ("llama", {"windows": (4, 0, 0), "bias": "qkv"}),
    ("llama", {"qk_norm": True, "windows": (0, 5)}),
    ("gpt2", {"num_kv_heads": 4}),
    ("gpt2", {"num_kv_heads": 4, "mlp": "gelu_exact", "query_pre_attn_scalar": 1.0}),
    ("gpt2", {"num_kv_heads": 4, "positions": "rope", "parallel": True}),
    ("llama", {"mlp": "geglu", "embed_scale": True}),
    (
      "llama",
      {
        "mlp": "geglu", "embed_scale": True, "post_norm": True, "windows": (3, 0),
        "attention_softcap": 2.0, "logit_softcap": 3.0, "query_pre_attn_scalar": 7.0,
      },
    ),
  ],
)  # fmt: skip
def test_our_own_decoders(style, changes, tmp_path):
  decoder = decoders.drawn(decoders.config(style, **changes))
  huggingface.export(decoder, tmp_path / "ours")
  tokens = decoders.tokens(decoder.config)
  want = logits(decoder, tokens)
  assert np.abs(theirs(tmp_path / "ours", tokens) - want).max() <= 1e-4
  assert np.abs(want).max() > 1


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_our_tokenizers(kind, tmp_path):
  texts = ["import os\n", "hélo wörld \x00\x7f", " def f(x):\n    return x"]
  words = ByteTokenizer() if kind == "byte" else train_bpe(texts * 5, 300)
  config = decoders.config(vocab_size=words.vocab_size)
  huggingface.export(decoders.drawn(config), tmp_path / "ours", tokenizer=words)
  loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
  for text, ids in zip(texts, words.encode_batch(texts), strict=True):
    assert loaded(text)["input_ids"] == list(ids)
    assert loaded.decode(ids) == text
  assert loaded.eos_token_id == loaded.bos_token_id == words.eot_id
  settings = transformers.GenerationConfig.from_pretrained(tmp_path / "ours")
  assert settings.eos_token_id == words.eot_id


def test_the_golden_folders_have_the_settings_that_are_made_now(tmp_path):
  for name in make.MODELS:
    model = make.build(name)
    model.config.save_pretrained(tmp_path / name)
    made = json.loads((tmp_path / name / "config.json").read_text())
    golden = json.loads((make.FOLDER / name / "config.json").read_text())
    for key in ("transformers_version", "architectures", "dtype"):
      made.pop(key, None), golden.pop(key, None)
    assert made == golden


def test_the_golden_frequencies_are_those_that_are_made_now():
  assert rope.found() == json.loads(rope.FILE.read_text())
