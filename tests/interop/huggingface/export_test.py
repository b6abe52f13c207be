"""Exported decoders are loaded with the same bits; those that no family expresses are refused."""

import dataclasses
import json
import resource

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from resjax.data.tokenizer import ByteTokenizer, train_bpe
from resjax.interop import huggingface
from resjax.interop.huggingface.model_card import model_card
from resjax.models.config import LayerRope, MoEConfig, MupConfig, ShortSWAConfig
from resjax.nn.rope_scaling import RopeScaling
from tests.helpers import decoders, layouts, walks
from tests.interop.huggingface.golden_test import FOLDER, NAMES
from tests.interop.huggingface.remote_code.cases import longrope


def assert_same(decoder, other):
  ours, theirs = (nnx.to_pure_dict(nnx.state(model)) for model in (decoder, other))
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def stored(folder):
  tensors = {}
  for path in folder.glob("*.safetensors"):
    tensors |= load_file(path)
  return tensors


# One of each table of names.
@walks.names("llama", "gpt2", "gpt_neox", "gemma2", "mixtral", "qwen3_moe", among=NAMES)
def test_tensors_are_those_that_transformers_wrote(name, tmp_path):
  want = stored(FOLDER / name)
  decoder, dtype = huggingface.load(FOLDER / name), str(next(iter(want.values())).dtype)
  huggingface.export(decoder, tmp_path / "out", dtype=dtype, shard_bytes=15_000)
  got = stored(tmp_path / "out")
  assert set(got) == set(want)
  modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
  assert len(modes) == 1  # whoever may read the settings may read the tensors
  for path, tensor in want.items():
    assert got[path].dtype == tensor.dtype
    # The gains of these norms are stored less 1, and were rounded when 1 was added.
    atol = 2**-24 if name.startswith("gemma") and "norm" in path else 0
    np.testing.assert_allclose(np.float64(got[path]), np.float64(tensor), rtol=0, atol=atol)
  assert huggingface.read_config(tmp_path / "out") == decoder.config
  files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
  assert len(files) > 1 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
  assert max((tmp_path / "out" / file).stat().st_size for file in files) < 20_000
  index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
  assert sorted(set(index["weight_map"].values())) == files
  assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in want.values())


@pytest.mark.parametrize("style, changes", [("llama", {}), ("gpt2", {"num_kv_heads": 4})])
def test_our_own_decoders_come_back_bit_equal(style, changes, tmp_path):
  decoder = decoders.drawn(decoders.config(style, **changes))
  huggingface.export(decoder, tmp_path / "out")
  assert_same(decoder, huggingface.load(tmp_path / "out"))


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path):
  (tmp_path / "victim").mkdir()
  (tmp_path / "victim" / "kept").touch()
  left = tmp_path / ".out.partial"
  left.symlink_to(tmp_path / "victim")
  huggingface.export(decoders.decoder(decoders.config("llama")), tmp_path / "out")
  left.mkdir()
  (left / "model.safetensors").touch()
  (tmp_path / "out").rename(tmp_path / "first")
  huggingface.export(decoders.decoder(decoders.config("llama")), tmp_path / "out")
  assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "out", "victim"]
  assert (tmp_path / "victim" / "kept").exists()


@pytest.mark.parametrize("room", [100, 10_000])  # bytes of a file: of config.json, of the tensors
def test_a_full_disk_is_one_line_and_leaves_nothing(room, tmp_path):
  decoder = decoders.decoder(decoders.config("llama"))
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
  try:
    with pytest.raises(
      OSError, match=r"cannot write .*out \(.*File too large.*\); make room"
    ) as full:
      huggingface.export(decoder, tmp_path / "out")
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert "\n" not in str(full.value) and not list(tmp_path.iterdir())


OLMO = {"pre_norm": False, "post_norm": True, "qk_norm": True, "qk_norm_over": "heads"}
GEMMA3 = {
  "post_norm": True, "qk_norm": True, "mlp": "geglu", "embed_scale": True, "windows": (4, 0),
  "ropes": (LayerRope(50.0), LayerRope(90.0, RopeScaling("linear", 2.0))),
}  # fmt: skip


# The two styles of configs/base.py with changes that they allow.
@pytest.mark.parametrize(
  "style, changes, family",
  [
    ("llama", {}, "llama"),
    ("llama", {"bias": "attention"}, "llama"),
    ("llama", {"qk_norm": True, "tied_embeddings": False}, "qwen3"),
    ("llama", {"num_heads": 3, "num_kv_heads": 1, "head_dim": 6}, "mistral"),
    ("llama", {"windows": (4,)}, "mistral"),
    ("llama", {"rope_fraction": 0.5}, "phi3"),
    ("llama", {"ropes": (LayerRope(9.0), LayerRope(0.0))}, "smollm3"),
    ("llama", {"norm": "layernorm", "norm_bias": True, "bias": "qkv"}, "stablelm"),
    ("gpt2", {"positions": "rope", "norm_bias": True, "windows": (4,)}, "starcoder2"),
    ("llama", OLMO, "olmo2"),
    ("llama", OLMO | {"windows": (4, 0)}, "olmo3"),
    ("llama", GEMMA3, "gemma3_text"),
    ("llama", {"windows": (4, 0), "bias": "qkv"}, "qwen2"),
    ("gpt2", {"num_kv_heads": 4}, "gpt2"),
    ("gpt2", {"num_kv_heads": 4, "query_pre_attn_scalar": 1.0}, "gpt2"),
    ("gpt2", {"num_kv_heads": 4, "positions": "rope", "mlp": "gelu_exact"}, "gpt_neox"),
    ("llama", {"moe": MoEConfig(4), "windows": (4,)}, "mixtral"),
    ("llama", {"moe": MoEConfig(4, expert_dim=6, first_dense=1), "qk_norm": True}, "qwen3_moe"),
    (
      "llama",
      {"moe": MoEConfig(4, norm_topk_prob=False), "qk_norm": True, "qk_norm_over": "heads"},
      "olmoe",
    ),
  ],
)
def test_the_family_of_our_own_decoders(style, changes, family):
  assert huggingface.find_family(decoders.config(style, **changes))[0].model_type == family


def test_two_norms_are_written_as_one_where_they_are_equal(tmp_path):
  decoder = huggingface.load(FOLDER / "stablelm_parallel")
  norm = decoder.layers.norms["mlp"]["x"]
  norm.bias[...] = norm.bias[...].at[1].add(1)
  with pytest.raises(ValueError, match="layers/norms/mlp/x/bias differs from the parameter with"):
    huggingface.export(decoder, tmp_path / "out")
  assert not list(tmp_path.iterdir())


def test_gains_that_were_rounded_once_come_back_bit_equal(tmp_path):
  decoder = huggingface.load(FOLDER / "gemma2")
  huggingface.export(decoder, tmp_path / "out")
  assert_same(decoder, huggingface.load(tmp_path / "out"))


@pytest.mark.slow
def test_a_sharded_decoder_in_bfloat16(tmp_path):
  layout = layouts.layout("fsdp", data=1, fsdp=8)
  split, whole = (huggingface.load(FOLDER / "mistral", layout=at) for at in (layout, None))
  huggingface.export(split, tmp_path / "split", dtype="bfloat16")
  huggingface.export(whole, tmp_path / "whole", dtype="bfloat16")
  paths = [tmp_path / name / "model.safetensors" for name in ("split", "whole")]
  assert paths[0].read_bytes() == paths[1].read_bytes()
  assert_same(whole, huggingface.load(tmp_path / "whole"))  # Its values came from bfloat16.


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"residual": "gate"}, "nearest, llama: config.model.residual='gate', there 'standard'$"),
    ({"value_mixing": "depth"}, "llama: config.model.value_mixing='depth', there 'none'$"),
    ({"value_residual": "fixed"}, "llama: config.model.value_residual='fixed', there 'none'$"),
    ({"short_swa": ShortSWAConfig(4)}, "llama: config.model.short_swa=4, there 0$"),
    (
      {"mup": MupConfig(8, 2)},
      r"llama: config.model.mup=MupConfig\(base_width=8, base_layers=2\), ",
    ),
    ({"windows": (4, 8, 0)}, r"config.model.windows=\(4, 8, 0\), there"),
    ({"parallel": True}, "config.model.parallel=True, there False"),
    ({"logit_softcap": 3.0}, "llama: config.model.logit_softcap=3.0, there 0.0$"),
    ({"moe": MoEConfig(4, score="sigmoid")}, "mixtral: config.model.moe.score='sigmoid', there 's"),
    (
      {"moe": MoEConfig(4, num_shared_experts=2, routed_scaling_factor=2.0)},
      "mixtral: config.model.moe.num_shared_experts=2, there 0; .*scaling_factor=2.0, there 1.0$",
    ),
    ({"moe": MoEConfig(4, first_dense=1), "residual": "gate"}, "routed_layers=.*, there "),
    (
      {"rope_fraction": 0.5, "bias": "attention"},
      "llama: config.model.rope_fraction=0.5, there 1.0$",
    ),
  ],
)
def test_what_no_family_has_is_refused(changes, message):
  with pytest.raises(ValueError, match=message) as caught:
    huggingface.find_family(decoders.config("llama", **changes))
  assert "\n" not in str(caught.value)


def test_other_refusals(tmp_path):
  decoder = huggingface.load(FOLDER / "gpt2")
  decoder.config = decoders.config("gpt2", "gate")
  with pytest.raises(ValueError, match=r"there 'standard'; .* leave out with_code=False"):
    huggingface.export(decoder, tmp_path / "out", with_code=False)
  decoder.config = decoders.config("gpt2", "deep_delta", short_swa=ShortSWAConfig(4, 2))
  both = r"residual='deep_delta', there .*; in the way of code of its own: .*short_swa\.window=4"
  with pytest.raises(ValueError, match=both):
    huggingface.export(decoder, tmp_path / "out")
  assert not list(tmp_path.iterdir())
  with pytest.raises(ValueError, match="dtype='int8' is not supported; allowed: float32, bfloat16"):
    huggingface.export(decoder, tmp_path / "out", dtype="int8")
  (tmp_path / "kept").write_text("mine")
  with pytest.raises(ValueError, match="exists and is not an empty folder; set folder to another"):
    huggingface.export(decoder, tmp_path)
  assert (tmp_path / "kept").read_text() == "mine"
  (tmp_path / "link").symlink_to(tmp_path / "nothing")
  with pytest.raises(ValueError, match="link is a link; set folder to the folder itself"):
    huggingface.export(decoder, tmp_path / "link")
  with pytest.raises(ValueError, match=r"^gs://bucket/out is no local folder; set folder to one"):
    huggingface.export(decoder, "gs://bucket/out")


def test_what_vllm_would_compute_wrongly_is_refused():
  mixes = decoders.config("llama", "deep_delta")
  with pytest.raises(ValueError, match=r"^vLLM cannot serve this .*'deep_delta' mixes tokens"):
    huggingface.find_form(mixes, server="vllm")
  capped = decoders.config(mup=MupConfig(8), logit_softcap=3.0)
  with pytest.raises(ValueError, match=r"^vLLM cannot serve this decoder: .*\.logit_softcap comes"):
    huggingface.find_form(capped, server="vllm")
  for changes, words in (
    ({"windows": (3, 0, 5)}, r"\.windows=\(3, 0, 5\) has several sizes, there one"),
    ({"rope_scaling": longrope(8), "head_dim": 6}, r"kind='longrope', there frequencies for every"),
    ({"moe": MoEConfig(4), "mlp": "geglu"}, r"\.mlp='geglu', there swiglu for experts"),
  ):
    with pytest.raises(ValueError, match=f"^vLLM cannot serve this decoder: .*{words}"):
      huggingface.find_form(decoders.config("llama", "gate", **changes), server="vllm")
  with pytest.raises(ValueError, match="server='tgi' is not known; allowed: '', 'vllm'"):
    huggingface.find_form(mixes, server="tgi")
  alone = {"value_width": 1, "compressor": "none", "embedding_expansion": False}
  for config in (decoders.config("llama", "deep_delta", alone), decoders.config()):
    huggingface.find_form(config, server="vllm")


_OWN_OLMOE = {"moe": MoEConfig(4, norm_topk_prob=False), "qk_norm": True, "qk_norm_over": "heads"}
_OWN_OLMOE |= {"norm_eps": 1e-5, "tied_embeddings": False}


@pytest.mark.parametrize(
  "fields, changes, words",
  [
    (_OWN_OLMOE, {"norm_eps": 1e-6}, r"\.norm_eps=1e-06, there 1e-05"),
    (_OWN_OLMOE, {"moe": MoEConfig(4)}, r"\.moe\.norm_topk_prob=True, there False"),
    (_OWN_OLMOE, {"tied_embeddings": True}, r"\.tied_embeddings=True, there False"),
    (_OWN_OLMOE, {"bias": "attention"}, r"\.bias='attention', there 'none'"),
    ({"moe": MoEConfig(4), "qk_norm": True}, {"bias": "attention"}, r"\.bias='att.*, there 'none'"),
  ],
)
def test_what_its_own_models_of_mixtures_ignore_is_refused_for_vllm(fields, changes, words):
  own = decoders.config("llama", **fields)
  form = huggingface.find_form(own, server="vllm")
  config = dataclasses.replace(own, **changes)
  assert huggingface.find_form(config).architecture == form.architecture
  said = f"^vLLM's own {form.architecture} cannot serve this decoder: config.model{words}; a "
  for with_code in (None, False):
    with pytest.raises(ValueError, match=said + r".*keeps that: with_code=True \(--with_code\)$"):
      huggingface.find_form(config, with_code, server="vllm")
  assert huggingface.find_form(config, with_code=True, server="vllm").files


def test_the_card_says_what_the_model_is(tmp_path):
  facts = {"checkpoint": "tiny | step 2"}
  for name, code in (("standard", ""), ("deep_delta", "modeling_resjax_deep_delta.py")):
    folder, decoder = tmp_path / name, decoders.drawn(decoders.config("llama", name))
    huggingface.export(decoder, folder, facts=facts)
    card = (folder / "README.md").read_text()
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(decoder)))
    assert f"tags: [resjax, {name}]" in card and f"| parameters | {count:,}, float32 |" in card
    assert "| checkpoint | tiny \\| step 2 |" in card
    assert ("trust_remote_code=True" in card) == (code in card and bool(code)) == bool(code)
    assert ("vLLM cannot serve it" in card) == bool(code)
    assert "AutoTokenizer" not in card


def test_the_card_counts_experts():
  moe = MoEConfig(4, 2, expert_dim=6, num_shared_experts=1, first_dense=1)
  config = decoders.config("llama", moe=moe, num_layers=3)
  card = model_card(config, {}, "", 1, "float32", has_tokenizer=False)
  assert "| experts | 4 of width 6 in 2 layers, 2 for a token, 1 of all tokens |\n" in card
  assert "experts" not in model_card(
    decoders.config("llama"), {}, "", 1, "float32", has_tokenizer=False
  )


def test_tokenizers_of_our_own_go_along(tmp_path):
  texts = ["import os\n", "hélo wörld \x00\x7f\xad\u2028", " def f(x):\n    return x"] * 3
  for words in (ByteTokenizer(), train_bpe(texts, 300)):
    config = decoders.config(vocab_size=words.vocab_size)
    folder = tmp_path / type(words).__name__
    huggingface.export(decoders.drawn(config), folder, tokenizer=words)
    read = huggingface.tokenizer(folder)
    for ours, theirs in zip(words.encode_batch(texts), read.encode_batch(texts), strict=True):
      np.testing.assert_array_equal(ours, theirs)
      assert read.decode(theirs) == words.decode(ours)
    np.testing.assert_array_equal(read.token_bytes(), words.token_bytes())
    assert read.eot_id == words.eot_id
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings == {"bos_token_id": words.eot_id, "eos_token_id": words.eot_id}
