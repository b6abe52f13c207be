"""The places of loaded parameters, the memory of loading, and errors for damaged folders."""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from resjax.interop import huggingface
from resjax.interop.huggingface.tensors import Part, Tensor
from tests.helpers import layouts
from tests.interop.huggingface.export_test import assert_same, stored
from tests.interop.huggingface.golden_test import FOLDER, logits, reference

ROOT = pathlib.Path(__file__).parents[3]


def flat(decoder):
  state = nnx.to_flat_state(nnx.state(decoder))
  return {"/".join(map(str, path)): variable[...] for path, variable in state}


@pytest.fixture
def copied(tmp_path):
  """Returns a function that copies a golden folder, which a test may then damage."""

  def copy(name):
    return pathlib.Path(shutil.copytree(FOLDER / name, tmp_path / name))

  return copy


def test_any_slice_of_parts_of_different_widths_is_read():
  widths = (8, 4, 4)
  theirs, config = np.arange(2 * 16).reshape(2, 16), SimpleNamespace()
  for part, start in ((0, 0), (1, 8), (2, 12)):
    width = widths[part]
    tensor = Tensor("theirs", "ours", part=Part(part, lambda _: widths))
    assert tensor.stored_shape((2, width), config) == (2, 16)
    for low, high in itertools.combinations(range(width + 1), 2):
      index = (slice(None), slice(low, high))
      found = tensor.read(theirs.__getitem__, (2, width), index, config)
      np.testing.assert_array_equal(found, theirs[:, start + low : start + high])


@pytest.mark.parametrize("per_head", [False, True])
def test_any_slice_of_a_part_is_read(per_head):
  count, width = 3, 4
  ours = np.arange(2 * count * 2 * width).reshape(2, count, 2, width)  # [D, q k v, heads, C]
  theirs = (np.moveaxis(ours, 1, 2) if per_head else ours).reshape(2, -1)
  config = SimpleNamespace(widths=(width if per_head else 2 * width,) * count)
  for part, start, stop in itertools.product(range(count), range(8), range(1, 9)):
    if start < stop:
      tensor = Tensor("theirs", "ours", part=Part(part, lambda c: c.widths))
      found = tensor.read(theirs.__getitem__, (2, 8), (slice(None), slice(start, stop)), config)
      np.testing.assert_array_equal(found, ours[:, part].reshape(2, 8)[:, start:stop])


# GPT-2, GPT-NeoX and Phi-3 store q, k and v in one tensor, of which devices read slices.
@pytest.mark.parametrize(
  "name, mesh",
  [
    ("llama", {"data": 1, "fsdp": 4, "tensor": 2}),
    pytest.param("gpt_neox", {"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.release),
    pytest.param("gpt2", {"data": 1, "fsdp": 8}, marks=pytest.mark.release),
    pytest.param("olmo2", {"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.release),
    pytest.param("phi3", {"data": 1, "fsdp": 4, "tensor": 2}, marks=pytest.mark.release),
    ("qwen3_moe", {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2}),
  ],
)
def test_shards_are_slices_of_the_same_parameters(name, mesh):
  layout = layouts.layout("fsdp" if mesh.get("tensor", 1) == 1 else "fsdp_tp", **mesh)
  if layout.num_shards("vocab") > 1:
    with pytest.raises(ValueError, match="V=61 of embed/embedding"):
      huggingface.load(FOLDER / name, layout=layout)
    rules = {**layout.rules.__dict__, "vocab": ()}
    layout = type(layout)(layout.mesh, type(layout.rules)(**rules))
  whole, split = (huggingface.load(FOLDER / name, layout=at) for at in (None, layout))
  for path, array in flat(split).items():
    np.testing.assert_array_equal(array, flat(whole)[path])
  kernel = split.layers.attention.q_proj.kernel[...]
  wanted = layout.sharding("layers", "embed_param", "heads")
  assert kernel.sharding.is_equivalent_to(wanted, kernel.ndim)
  assert len({str(shard.index) for shard in kernel.addressable_shards}) > 1
  tokens = np.tile(reference(name)["tokens"], (4, 1))
  got = logits(split, jax.device_put(tokens, layout.sharding("batch", "tokens")))
  assert np.abs(got[:2] - reference(name)["logits"]).max() <= 1e-4


def in_one_tensor(tensors):
  """The tensors of a layer's experts, as transformers 5 holds them and writes them on request."""
  found, matrices = {}, {}
  for name, tensor in tensors.items():
    match = re.fullmatch(r"(.*\.)\w+\.experts\.(\d+)\.(\w+)\.weight", name)
    if match:
      matrices.setdefault(f"{match[1]}mlp.experts.", {})[match[3], int(match[2])] = tensor
    else:
      found[name.replace(".block_sparse_moe.", ".mlp.")] = tensor
  for place, of_layer in matrices.items():
    experts = range(len(of_layer) // 3)
    for gate, up, down in (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")):
      if (gate, 0) in of_layer:
        both = [np.concatenate([of_layer[gate, e], of_layer[up, e]]) for e in experts]
        found[f"{place}gate_up_proj"] = np.stack(both)
        found[f"{place}down_proj"] = np.stack([of_layer[down, e] for e in experts])
  return found


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_in_one_tensor(name, copied):
  folder = copied(name)
  want = huggingface.load(folder)
  tensors = in_one_tensor(stored(folder))
  assert sum("experts" in name for name in tensors) == 2 * len(want.config.routed_layers)
  for file in folder.glob("model*"):
    file.unlink()
  save_file(tensors, folder / "model.safetensors")
  assert_same(want, huggingface.load(folder))
  layout = layouts.layout("fsdp", data=1, fsdp=4, expert=2) if name == "qwen3_moe" else None
  assert_same(want, huggingface.load(folder, layout=layout))


def test_an_expert_that_is_missing(copied):
  folder = copied("olmoe")
  tensors, name = stored(folder), "model.layers.1.mlp.experts.6.up_proj.weight"
  del tensors[name]
  save_file(tensors, folder / "model.safetensors")
  with pytest.raises(ValueError, match=f"1 tensors .*\n  {name}  expected \\(16, 24\\) .*nothing;"):
    huggingface.load(folder)


def test_dtypes():
  plain, narrow = (
    huggingface.load(FOLDER / "gemma", param_dtype=d) for d in ("float32", "bfloat16")
  )
  assert {a.dtype for a in flat(plain).values()} == {jnp.dtype("float32")}
  assert {a.dtype for a in flat(narrow).values()} == {jnp.dtype("bfloat16")}
  # The file is bfloat16. Matrices equal its values; gains are its values plus one, rounded.
  for path, array in flat(plain).items():
    same = array.astype(jnp.bfloat16) if path.endswith("scale") else array
    np.testing.assert_array_equal(same, flat(narrow)[path])
  assert plain.config.dtype == "float32"


@pytest.mark.slow
def test_activations_in_bfloat16():
  activations = huggingface.load(FOLDER / "gemma", dtype="bfloat16")
  got = logits(activations, reference("gemma")["tokens"])
  assert 1e-4 < np.abs(got - reference("gemma")["logits"]).max() < 0.2


def test_names_without_the_prefix_and_with_buffers(copied):
  """The first GPT-2 checkpoints have such names."""
  folder = copied("gpt2")
  tensors = load_file(folder / "model.safetensors")
  tensors = {name.removeprefix("transformer."): a for name, a in tensors.items()}
  tensors["h.0.attn.bias"] = np.ones((1, 1, 96, 96), bool)
  tensors["lm_head.weight"] = tensors["wte.weight"]
  save_file(tensors, folder / "model.safetensors")
  want = flat(huggingface.load(FOLDER / "gpt2"))
  for path, array in flat(huggingface.load(folder)).items():
    np.testing.assert_array_equal(array, want[path])


def test_one_table_of_all_that_does_not_fit(copied):
  folder = copied("qwen3")
  tensors = load_file(folder / "model.safetensors")
  del tensors["model.layers.1.mlp.up_proj.weight"]
  tensors["model.layers.7.mlp.up_proj.weight"] = np.ones((2, 3), np.float32)
  tensors["model.layers.0.self_attn.q_norm.weight"] = np.ones(5, np.float32)
  save_file(tensors, folder / "model.safetensors")
  with pytest.raises(ValueError) as caught:
    huggingface.load(folder)
  lines = [re.sub(" +", " ", line.strip()) for line in str(caught.value).splitlines()]
  assert lines == [
    f"{folder / 'config.json'}: 3 tensors are not those that it describes; nothing was loaded",
    "model.layers.0.self_attn.q_norm.weight expected (8,) found (5,);",
    "model.layers.1.mlp.up_proj.weight expected (36, 24) found nothing;",
    "model.layers.7.mlp.up_proj.weight expected nothing found (2, 3);",
  ]


def without_config(folder):
  (folder / "config.json").unlink()


def with_setting(**values):
  def change(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))

  return change


def with_shards(*names):
  def change(folder):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for tensor, name in zip(index["weight_map"], names, strict=False):
      index["weight_map"][tensor] = name
    path.write_text(json.dumps(index))
    shutil.copy(folder / "model-00001-of-00002.safetensors", folder.parent / "other.safetensors")
    (folder / "link.safetensors").symlink_to(folder.parent / "other.safetensors")

  return change


def with_index(text):
  def change(folder):
    (folder / "model.safetensors.index.json").write_text(text)

  return change


def with_header(header, length=None):
  """Replaces a file by its 8 bytes of length, a header and one byte."""

  def change(folder):
    text = header.encode()
    size = (len(text) if length is None else length).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(size + text + b"x")

  return change


def truncated(folder):
  path = folder / "model.safetensors"
  path.write_bytes(path.read_bytes()[:-100])


def without_a_shard(folder):
  (folder / "model-00002-of-00002.safetensors").unlink()


def without_weights(folder):
  (folder / "model.safetensors").unlink()


def with_integers(folder):
  tensors = load_file(folder / "model.safetensors")
  tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)
  save_file(tensors, folder / "model.safetensors")


def with_another_head(folder):
  tensors = load_file(folder / "model.safetensors")
  head = tensors["transformer.wte.weight"].copy()
  head[-1, -1] += 1
  save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")


@pytest.mark.parametrize(
  "name, damage, message",
  [
    ("gpt2", with_another_head, r"lm_head.weight differs from transformer.wte.weight, and config"),
    ("qwen3", without_config, r"qwen3 has no config.json$"),
    ("qwen3", truncated, r"qwen3/model.safetensors is damaged or cut off: .*"),
    ("mistral", without_a_shard, r"names files that are absent: model-00002-of-00002.safetensors"),
    (
      "mistral",
      with_shards("../other.safetensors"),
      r"weight_map is '../other.safetensors': a name",
    ),
    ("mistral", with_shards("/dev/zero"), r"weight_map is '/dev/zero': a name below"),
    ("mistral", with_shards("link.safetensors"), r"weight_map is .* which a link leads out of"),
    ("mistral", with_shards(7), r"index.json: weight_map.* is 7: expected str, got int"),
    ("mistral", with_index("[]"), r"index.json: .*expected object, got array"),
    ("mistral", with_index("{}"), r"index.json: .*missing required field weight_map"),
    ("mistral", with_index("{" * 9), r"index.json holds no JSON"),
    ("qwen3", with_header("{}", 2**63 - 1), r"model.safetensors is damaged or cut off"),
    ("qwen3", with_header("{}", 1000), r"model.safetensors is damaged or cut off"),
    ("qwen3", with_header("[1]"), r"model.safetensors is damaged or cut off"),
    (
      "qwen3",
      with_header('{"a": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 1]}}'),
      r"model.safetensors is damaged or cut off",
    ),
    (
      "llama",
      with_setting(num_hidden_layers=4095),
      r"config.json has 4,095 layers, its model \d+ ten",
    ),
    ("qwen3", with_setting(vocab_size=2**24), r"config.json: the vocabulary is 16,777,216, its"),
    ("qwen3", with_setting(hidden_size=2**20), r"config.json: the width is 1,048,576, its"),
    ("qwen3", with_setting(num_attention_heads=2**16), r"config.json: the width of all heads is"),
    ("qwen3", without_weights, r"has neither model.safetensors nor model.safetensors.index.json"),
    ("qwen3", with_integers, r"model.norm.weight is I8; allowed: F64, F32, F16, BF16"),
    (
      "qwen3",
      with_setting(model_type="mamba"),
      r"model_type='mamba' is not supported; allowed: llama, mistral, .*, gpt_neox, .*gemma3$",
    ),
    (
      "qwen3",
      with_setting(architectures=["Qwen3ForSequenceClassification"]),
      r"architecture 'Qwen3ForSequenceClassification' is not supported; allowed: Llama.*",
    ),
  ],
)
def test_damage_is_one_line(copied, name, damage, message):
  folder = copied(name)
  damage(folder)
  with pytest.raises(ValueError, match=message) as caught:
    huggingface.load(folder)
  assert "\n" not in str(caught.value)


MEASURED = """
import ctypes, gc, sys, threading, time
import jax
from flax import nnx
from resjax.interop import huggingface

def resident():
  with open("/proc/self/status") as file:
    return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))

def load():
  return huggingface.load(sys.argv[1], param_dtype="bfloat16")

load()  # Compiled programs stay in memory.
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
before, peak, done = resident(), 0, False

def watch():
  global peak
  while not done:
    peak = max(peak, resident())
    time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
decoder = load()
done = True
watcher.join()
print(before, peak, sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(decoder))))
"""


def big(folder, layers):
  """Makes a folder with a shard of 34 MB per layer, and one for the embedding."""
  config = json.loads((FOLDER / "llama" / "config.json").read_text())
  config |= {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": layers, "head_dim": 128,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4096, "attention_bias": False,
    "tie_word_embeddings": True,
  }  # fmt: skip
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(config))
  shapes = {f"self_attn.{n}_proj": (1024, 1024) for n in "qkvo"}
  shapes |= {"mlp.gate_proj": (4096, 1024), "mlp.up_proj": (4096, 1024)}
  shapes |= {"mlp.down_proj": (1024, 4096), "input_layernorm": (1024,)}
  shapes |= {"post_attention_layernorm": (1024,)}
  files = {"model.embed_tokens.weight": (4096, 1024), "model.norm.weight": (1024,)}
  shards = [files] + [
    {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}
    for layer in range(layers)
  ]
  index = {}
  for number, names in enumerate(shards):
    file = f"model-{number}.safetensors"
    save_file({n: np.ones(shape, jnp.bfloat16) for n, shape in names.items()}, folder / file)
    index |= dict.fromkeys(names, file)
  (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
  return max(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_of_the_host_is_what_stays_and_a_shard(tmp_path):
  shard = big(tmp_path / "big", 6)
  arguments = [sys.executable, "-c", MEASURED, tmp_path / "big"]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
  # glibc gives back freed memory at once, as it always does for more than 32 MB.
  environment["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
  done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  before, peak, kept = map(int, done.stdout.split())
  print(
    f"peak {(peak - before) / 1e6:.0f} MB, stays {kept / 1e6:.0f} MB, shard {shard / 1e6:.0f} MB"
  )
  assert kept > 5 * shard
  assert peak - before <= kept + 1.3 * shard


def test_links_in_the_cache_of_the_hub_are_followed(tmp_path):
  folder = tmp_path / "models--a--b" / "snapshots" / "0123"
  blobs = tmp_path / "models--a--b" / "blobs"
  folder.mkdir(parents=True)
  blobs.mkdir()
  for file in (FOLDER / "mistral").iterdir():
    if file.is_file():
      shutil.copy(file, blobs / f"{file.name}.blob")
      (folder / file.name).symlink_to(f"../../blobs/{file.name}.blob")
  want = flat(huggingface.load(FOLDER / "mistral"))
  for path, array in flat(huggingface.load(folder)).items():
    np.testing.assert_array_equal(array, want[path])


def test_sizes_beyond_the_files_are_refused_before_anything_is_made(copied):
  folder = copied("llama")
  with_setting(num_hidden_layers=4095)(folder)
  with pytest.raises(ValueError, match="4,095 layers"):
    huggingface.read_config(folder)
  folder = copied("mixtral")
  with_setting(num_local_experts=4000)(folder)
  with pytest.raises(ValueError, match="the width of all experts is 240,000, its model has"):
    huggingface.read_config(folder)
