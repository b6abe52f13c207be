"""GGUF files are the models that they were made of; what is not read is refused by name."""

import dataclasses
import json
import struct
import sys

import gguf
import jax
import numpy as np
import pytest
import tokenizers
from flax import nnx
from safetensors.numpy import load_file, save_file

from resjax.base.sharding import MeshConfig, ShardingConfig, make_layout
from resjax.base.sharding.rules import WHOLE
from resjax.data import GgufFile, model_files
from resjax.data.gguf import tokenizer as gguf_tokenizer
from resjax.interop import huggingface
from resjax.models import Decoder
from resjax.train.runs import parents
from tests.helpers.gguf_files import ARCHITECTURES, settings, tensors, write
from tests.helpers.pretrained import GOLDEN
from tests.interop.huggingface.golden_test import logits

TOKENS = np.arange(24).reshape(2, 12) % 61


def parameters(decoder):
  return {path: leaf.get_value() for path, leaf in nnx.to_flat_state(nnx.state(decoder))}


def same(one, other):
  one, other = parameters(one), parameters(other)
  assert one.keys() == other.keys()
  for path, value in one.items():
    np.testing.assert_array_equal(value, other[path], err_msg=str(path))


def folder(place, name, config=None, weights=None):
  """The folder that a file is made of."""
  place.mkdir()
  (place / "config.json").write_text(json.dumps(config or settings(name)))
  save_file(weights or tensors(name), place / "model.safetensors")
  return place


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_is_the_folder_that_it_was_made_of(name, tmp_path):
  found = huggingface.load(write(tmp_path / "model.gguf", name))
  expected = huggingface.load(folder(tmp_path / "folder", name))
  same(found, expected)
  # Factors of frequencies are recovered from float32.
  np.testing.assert_allclose(
    logits(found, TOKENS), logits(expected, TOKENS), atol=1e-5 if name == "llama3" else 0
  )


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_matrices_of_several_types(name, tmp_path):
  """Rows of whole blocks of 32 and 256 values, as quantized types have them."""
  wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
  config = settings(name) | wide | {"initializer_range": 0.5}
  (place := tmp_path / "config").mkdir()
  (place / "config.json").write_text(json.dumps(config))
  decoder = Decoder(huggingface.read_config(place), rngs=nnx.Rngs(0))
  huggingface.export(decoder, tmp_path / "exported")
  weights = load_file(tmp_path / "exported" / "model.safetensors")
  kinds = [gguf.GGMLQuantizationType[k] for k in ("F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "F32")]
  chosen = {key: kinds[i % len(kinds)] for i, key in enumerate(weights)}
  stored = {
    key: gguf.dequantize(gguf.quantize(value, chosen[key]), chosen[key])
    for key, value in weights.items()
    if value.ndim > 1
  }
  file = write(tmp_path / "model.gguf", name, config, weights, kind=chosen.get)
  made = folder(tmp_path / "folder", name, config, weights | stored)
  assert any(not np.array_equal(weights[key], value) for key, value in stored.items())
  same(huggingface.load(file), huggingface.load(made))


def test_types_that_only_files_have(tmp_path):
  """The library dequantizes types that it cannot write; any bytes are some numbers."""
  for kind in ("Q4_K", "Q6_K", "Q3_K", "IQ4_XS"):
    number = gguf.GGMLQuantizationType[kind]
    raw = np.random.default_rng(0).integers(0, 60, (5, gguf.GGML_QUANT_SIZES[number][1]), np.uint8)
    writer = gguf.GGUFWriter(str(tmp_path / kind), "llama")
    writer.add_tensor("a", raw, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = GgufFile.open(tmp_path / kind).tensors["a"]
    assert tensor.shape == (5, 256)
    expected = gguf.dequantize(raw, number)
    np.testing.assert_array_equal(tensor.read(), expected)
    np.testing.assert_array_equal(tensor.read(slice(1, 3)), expected[1:3])
    np.testing.assert_array_equal(tensor.read(np.array([4, 0])), expected[[4, 0]])


def test_shards_read_their_own_rows(tmp_path):
  """Also of rows that the file has in another order."""
  file = write(tmp_path / "model.gguf", "llama")
  mesh = MeshConfig(data=1, fsdp=2, tensor=2)
  rules = dataclasses.replace(WHOLE, embed_param=("fsdp",), heads=("tensor",))
  layout = make_layout(mesh, ShardingConfig("own", rules), devices=jax.devices()[:4])
  same(huggingface.load(file, layout=layout), huggingface.load(file))


def test_a_file_is_tied_where_it_has_no_head(tmp_path):
  weights = tensors("llama")
  head = weights.pop("lm_head.weight")
  assert huggingface.read_config(
    write(tmp_path / "tied.gguf", "llama", weights=weights)
  ).tied_embeddings
  whole = write(tmp_path / "own.gguf", "llama", weights=weights | {"lm_head.weight": head})
  assert not huggingface.read_config(whole).tied_embeddings


def test_what_a_file_leaves_out(tmp_path, caplog):
  """The format has defaults for some keys; the epsilon of norms it should have."""
  without = ["llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon", "llama.vocab_size"]
  without += ["llama.attention.key_length", "llama.attention.value_length"]
  without += ["llama.rope.dimension_count"]
  config = huggingface.read_config(write(tmp_path / "model.gguf", "llama", without=without))
  expected = dataclasses.replace(huggingface.read_config(GOLDEN / "llama"), norm_eps=1e-6)
  assert config == expected
  assert "has no llama.attention.layer_norm_rms_epsilon" in caplog.text


@pytest.mark.parametrize(
  ("keys", "kind", "factor"),
  [
    ({"scaling__factor": 4.0}, "linear", 4.0),
    ({"scale_linear": 4.0}, "linear", 4.0),
    ({"scaling__factor": 2.0, "scale_linear": 4.0}, "linear", 2.0),
    ({"scaling__factor": 4.0, "scaling__type": "none"}, "none", 1.0),
    ({"scaling__factor": 0.0, "scaling__type": "linear"}, "none", 1.0),
    ({"scale_linear": 1.0, "scaling__original_context_length": 24}, "none", 1.0),
  ],
)
def test_a_scaling_without_a_type_is_linear(tmp_path, keys, kind, factor):
  """As llama.cpp reads the keys; zero says nothing."""
  more = {f"llama__rope__{key}": value for key, value in keys.items()}
  scaling = huggingface.read_config(write(tmp_path / "a.gguf", "llama", **more)).rope_scaling
  assert (scaling.kind, scaling.factor) == (kind, factor)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "llama", "qwen2"])
def test_zero_switches_off(name, tmp_path):
  """A window or a softcap of zero is none, also where the family has one by default."""
  keys = ("attention__sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
  zeros = {f"{ARCHITECTURES[name]}__{key}": 0 for key in keys}
  found = huggingface.read_config(write(tmp_path / "a.gguf", name, **zeros))
  assert (max(found.windows), found.attention_softcap, found.logit_softcap) == (0, 0, 0)


def test_a_window_that_a_file_leaves_out(tmp_path):
  """The files of Gemma 3 say it where there is one; Gemma 2 has one of 4096."""
  for name, window in {"gemma2": 4096, "gemma3": 0}.items():
    without = [f"{name}.attention.sliding_window", f"{name}.rope.freq_base"]
    found = huggingface.read_config(write(tmp_path / name, name, without=without))
    assert max(found.windows) == window
    assert {rope.theta for rope in found.layer_ropes} == {10000.0}


@pytest.mark.parametrize(
  ("more", "field", "value"),
  [
    ({"rope_type": "linear", "factor": 4.0}, "kind", "linear"),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}, "factor", 4.0),
  ],
)
def test_scaled_rotations(tmp_path, more, field, value):
  config = settings("llama")
  config["rope_parameters"] = config["rope_parameters"] | more
  file = write(tmp_path / "model.gguf", "llama", config)
  found = huggingface.read_config(file)
  assert found == huggingface.read_config(folder(tmp_path / "folder", "llama", config))
  assert getattr(found.rope_scaling, field) == value


def test_queries_of_gemma_are_scaled_as_llama_cpp_does(tmp_path):
  """Where a file does not say: by the width of a head, in 27B models by that of D / H."""
  without = ["gemma2.attention.scale"]
  small = huggingface.read_config(write(tmp_path / "a.gguf", "gemma2", without=without))
  assert small.query_pre_attn_scalar == small.head_dim == 8
  config = settings("gemma2") | {"num_hidden_layers": 46}
  file = write(tmp_path / "b.gguf", "gemma2", config, without=without)
  found = model_files.find(file).json("config.json", dict)
  assert found["query_pre_attn_scalar"] == 24 / 4


def changed(name, at, to):
  def change(path):
    write(path, name)
    content = bytearray(path.read_bytes())
    content[at] = to
    path.write_bytes(content)

  return change


def written(name="llama", **options):
  return lambda path: write(path, name, **options)


def cut(size):
  def change(path):
    write(path, "llama")
    path.write_bytes(path.read_bytes()[:size])

  return change


def bare(arch, **more):
  def change(path):
    writer = gguf.GGUFWriter(str(path), arch)
    for key, value in more.items():
      writer.add_uint32(key.replace("__", "."), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

  return change


def big_endian(path):
  gguf.GGUFWriter(str(path), "llama", endianess=gguf.GGUFEndian.BIG).write_header_to_file()


def nested(depth):
  """A key whose value is a list in a list, and so on."""

  def change(path):
    key = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IQ", 9, 1) * depth
    path.write_bytes(content + struct.pack("<IQ", 8, 0))

  return change


@pytest.mark.parametrize(
  ("make", "said"),
  [
    (nested(100_000), "header cannot be read .*nested too deeply"),
    (bare("none", split__count=2, split__no=1), "is file 2 of 2, .* llama-gguf-split --merge"),
    (written(llama__attention__causal=False), "attention.causal=False is not read; allowed: True"),
    (written(llama__attention__head_count_kv=0), "num_key_value_heads is 0: expected int >= 1"),
    (
      written("llama3", llama__rope__scaling__factor=2.0),
      "rope_freqs.weight beside .*'factor': 2.0.* is not that of Llama 3.1, the only one",
    ),
    (
      written("gemma2", gemma2__attention__scale="a"),
      "Expected float, got str - at .*attention.scale",
    ),
    (written(llama__rope__freq_base=-1.0), r"Expected float > 0.0 - at .*rope.freq_base"),
    (
      written(words="gpt2", tokenizer__ggml__merges=["\n t"]),
      "merges do not fit the tokens: .*Token ` ?` out of vocabulary",
    ),
    (written(llama__block_count=4000), r"model.gguf has 4,000 layers, its model \d+ tensors"),
    (written(tokenizer__ggml__eot_token_id=99), "eot_token_id=99 is no token; allowed: 0..60"),
    (written(tokenizer__ggml__scores=["a"]), r"tokenizer.ggml.\*: scores\[0\] is 'a': expected"),
    (
      bare("mamba"),
      "architecture='mamba' is not read from GGUF files; allowed: llama, qwen2, qwen3",
    ),
    (bare("clip"), "architecture='clip'"),
    (bare("llama"), "has no llama.embedding_length; give a file that has it"),
    (
      written(llama__expert_count=8),
      "llama.expert_count=8: experts are not read from GGUF files; give the folder of safetensors",
    ),
    (written(llama__attention__sliding_window=4), "sliding_window=4 is not known for"),
    (written(llama__strange=3), "strange=3 is not known for .*--hf_ignore=strange"),
    (written(llama__attention__value_length=3), "value_length=3 is not read; allowed: 6"),
    (written(llama__rope__scaling__type="dynamic"), "'dynamic' is not supported; allowed: default"),
    (written(split__count=3), "is file 1 of 3, .*join them with llama-gguf-split --merge"),
    (big_endian, "is big-endian; .* convert it with gguf-convert-endian"),
    (changed("llama", 4, 9), "has version 9 of GGUF"),
    (changed("llama", 0, 0), r"is no GGUF file: it begins with b'\\x00GUF'"),
    (cut(0), "is no GGUF file: it begins with b''"),
    (cut(20), "is damaged or cut off: its header cannot be read .*; download it again"),
    (cut(3000), "is damaged or cut off|is cut off"),
    (cut(-64), r"is cut off: \S+ ends at byte [\d,]+, the file has [\d,]+; download it again"),
    (changed("llama", 16, 255), "is damaged or cut off"),
    (written(words=None), "has no tokenizer.ggml.tokens; give a file with a tokenizer"),
    (written(tokenizer__ggml__model="t5"), "model='t5' is not read; allowed: gpt2 .*, llama"),
    (written(words="gpt2", tokenizer__ggml__pre="own"), "pre='own', how texts are cut into words"),
    (written(tokenizer__ggml__bos_token_id=99), "bos_token_id=99 is no token; allowed: 0..60"),
    (written(without=["tokenizer.ggml.scores"]), "scores has 0 numbers for 61 tokens"),
  ],
)
def test_what_is_not_read_is_refused_in_one_line(make, said, tmp_path):
  make(tmp_path / "model.gguf")
  with pytest.raises(ValueError, match=said) as error:
    huggingface.tokenizer(tmp_path / "model.gguf")
    huggingface.load(tmp_path / "model.gguf")
  assert "\n" not in str(error.value) and "model.gguf" in str(error.value)


def test_a_setting_that_is_not_known_can_be_ignored(tmp_path):
  file = write(tmp_path / "model.gguf", "llama", llama__strange=3)
  same(huggingface.load(file, ignore=["strange"]), huggingface.load(write(tmp_path / "b", "llama")))


def test_a_folder_with_a_file_says_to_give_the_file(tmp_path):
  write(tmp_path / "model.gguf", "llama")
  with pytest.raises(
    ValueError, match=r"has no config.json; give a GGUF file itself, such as .*model"
  ):
    huggingface.load(tmp_path)
  assert model_files.is_one(str(tmp_path)) and model_files.is_one(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("place", [".", "checkpoints/4"])
def test_a_run_with_files_in_its_folder_is_a_run(place, tmp_path):
  (checkpoint := tmp_path / "checkpoints" / "4" / "params").mkdir(parents=True)
  (tmp_path / "run.json").write_text("{}")
  for folder in (tmp_path, checkpoint.parent):
    write(folder / "model.gguf", "llama")
  assert not parents.is_huggingface(tmp_path / place)
  assert parents.is_huggingface(tmp_path / place / "model.gguf")


def test_the_extra_is_named_where_the_library_is_missing(tmp_path, monkeypatch):
  file = write(tmp_path / "model.gguf", "llama")
  monkeypatch.setitem(sys.modules, "gguf", None)
  with pytest.raises(ValueError, match=r"model.gguf needs gguf, .*; pip install 'resjax\[gguf\]'$"):
    huggingface.load(file)


def texts():
  return ["the depth of a layer", "  the  width", "<s>the</s><img>", "", "th0e 11!", "xyz", "the\n"]


@pytest.mark.parametrize("words", ["llama", "gpt2"])
def test_a_tokenizer(words, tmp_path):
  found = huggingface.tokenizer(write(tmp_path / "model.gguf", "llama", words=words))
  (tokens,) = found.encode_batch(["the depth"])
  pieces = {"llama": [b" the", b" depth"], "gpt2": [b"the", b" ", b"de", b"p", b"th"]}[words]
  assert [found.piece(token) for token in tokens] == pieces
  assert found.decode(tokens) == "the depth"
  assert found.around.before == ((0,) if words == "llama" else ())
  assert (found.eot_id, found.end_ids, found.vocab_size) == (0, (0, 1), 61)
  assert {0, 1} <= found.control and not {3} & found.control
  assert found.model.encode("<s><img>", add_special_tokens=False).ids == [0, 3]


@pytest.mark.parametrize(
  ("pre", "before"),
  [("llama-bpe", (0,)), ("llama-v3", (0,)), ("falcon3", (0,)), ("smaug-bpe", ()), ("qwen2", ())],
)
def test_texts_begin_as_llama_cpp_begins_them(pre, before, tmp_path):
  """Where the file does not say; SmolLM3 cuts words by smaug-bpe, and has no token in front."""
  found = huggingface.tokenizer(
    write(tmp_path / "a.gguf", "llama", words="gpt2", tokenizer__ggml__pre=pre)
  )
  assert found.around.before == before


def test_the_ends_of_turns_and_messages_end_texts(tmp_path):
  keys = {f"tokenizer__ggml__{key}_token_id": i for key, i in {"eot": 3, "eom": 60}.items()}
  found = huggingface.tokenizer(write(tmp_path / "a.gguf", "llama", **keys))
  assert found.ids["eos_token_id"] == [1, 3, 60]
  assert found.end_ids == (0, 1, 3, 60) and {3, 60} <= found.control


def test_a_file_is_read_once_until_it_changes(tmp_path):
  place = write(tmp_path / "a.gguf", "llama")
  first = GgufFile.open(place)
  assert GgufFile.open(place) is first and first.files is GgufFile.open(place).files
  write(place, "llama", llama__context_length=99)
  assert GgufFile.open(place).settings["max_position_embeddings"] == 99


@pytest.mark.parametrize("words", ["llama", "gpt2"])
@pytest.mark.parametrize("add", [True, False])
def test_what_stands_around_texts(words, add, tmp_path):
  keys = {"tokenizer__ggml__add_bos_token": add, "tokenizer__ggml__add_eos_token": not add}
  found = huggingface.tokenizer(write(tmp_path / "model.gguf", "llama", words=words, **keys))
  assert (found.around.before, found.around.after) == (((0,), ()) if add else ((), (1,)))


def test_a_tokenizer_without_types_or_merges(tmp_path):
  """Tokens that keys name are special all the same; without merges each byte is a token."""
  without = ["tokenizer.ggml.token_type", "tokenizer.ggml.merges"]
  file = write(tmp_path / "model.gguf", "llama", words="gpt2", without=without)
  found = huggingface.tokenizer(file)
  (tokens,) = found.encode_batch(["the"])
  assert [found.piece(token) for token in tokens] == [b"t", b"h", b"e"]
  assert {0, 1} <= found.control


def test_a_chat_template_is_kept(tmp_path):
  file = write(tmp_path / "model.gguf", "llama", tokenizer__chat_template="{{ messages }}")
  kept = json.loads(huggingface.tokenizer(file).files["tokenizer_config.json"])
  assert kept["chat_template"] == "{{ messages }}" and kept["bos_token"] == "<s>"


@pytest.mark.parametrize("spelled", ["<s>", "$A", "a:1", "$B:0", "[x] $"])
def test_a_token_may_be_spelled_as_a_part_of_a_template(spelled):
  keys = {"model": "llama", "tokens": [spelled, "</s>", "a"], "scores": [0.0] * 3}
  keys |= {"bos_token_id": 0, "eos_token_id": 1, "add_eos_token": True, "add_space_prefix": False}
  made = gguf_tokenizer.files("a.gguf", {f"tokenizer.ggml.{key}": keys[key] for key in keys})
  model = tokenizers.Tokenizer.from_str(made["tokenizer.json"])
  assert model.encode("a").ids == [0, 2, 1]
  assert model.encode("a", "aa").ids == [0, 2, 1, 0, 2, 2, 1]


@pytest.mark.parametrize(("scores", "ids"), [((-2.0, -1.0), [3, 7]), ((-1.0, -2.0), [6, 5])])
def test_the_best_score_is_merged_first(scores, ids):
  keys = {
    "model": "llama", "tokens": ["<s>", "</s>", "<unk>", "a", "b", "c", "ab", "bc"],
    "scores": [0.0] * 6 + list(scores), "unknown_token_id": 2, "add_space_prefix": False,
  }  # fmt: skip
  made = gguf_tokenizer.files("a.gguf", {f"tokenizer.ggml.{key}": keys[key] for key in keys})
  assert tokenizers.Tokenizer.from_str(made["tokenizer.json"]).encode("abc").ids == ids
