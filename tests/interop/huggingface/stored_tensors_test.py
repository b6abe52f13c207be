"""Which file of a folder each tensor is read from, and what is said about doubts."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from resjax.interop import huggingface
from resjax.interop.huggingface.stored_tensors import INDEX, SINGLE, stored_tensors
from tests.helpers.pretrained import GOLDEN

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
STALE = "model.embed_tokens.weight"  # of which the second file has an old copy
MODEL = GOLDEN / "llama"  # two files
TOKENS = np.arange(10)[None] % 50


@pytest.fixture
def folder(tmp_path):
  """A model in two files, the second of which holds zeros for a tensor of the first."""
  tensors = whole()
  names = [STALE, *sorted(tensors.keys() - {STALE})]
  halves = {FIRST: names[: len(names) // 2], SECOND: names[len(names) // 2 :]}
  for file, part in halves.items():
    save_file({name: tensors[name] for name in part}, tmp_path / file)
  write_index(tmp_path, {name: file for file, part in halves.items() for name in part})
  old = load_file(tmp_path / SECOND) | {STALE: np.zeros_like(tensors[STALE])}
  save_file(old, tmp_path / SECOND)
  (tmp_path / "config.json").write_text((MODEL / "config.json").read_text())
  return tmp_path


def whole():
  return {k: v for file in sorted(MODEL.glob("*.safetensors")) for k, v in load_file(file).items()}


def write_index(folder, weight_map):
  (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def change_index(folder, **changes):
  """Gives tensors other files in the index; None: it names none."""
  index = json.loads((folder / INDEX).read_text())["weight_map"] | changes
  write_index(folder, {name: file for name, file in index.items() if file is not None})


def logits(folder):
  model = huggingface.load(folder)
  return np.asarray(model.logits(model(TOKENS)))


def test_the_index_decides(folder, caplog):
  np.testing.assert_array_equal(logits(folder), logits(MODEL))
  logits(folder)
  said = (
    f"{folder}: {STALE} stands in {FIRST}, {SECOND}; it is read from {FIRST}, as the index says"
  )
  assert caplog.messages == [said]


@pytest.mark.parametrize("file", [FIRST, SECOND])
def test_either_file_may_be_the_right_one(folder, file):
  change_index(folder, **{STALE: file})
  assert stored_tensors(folder)[STALE].file.name == file


def test_tensors_that_the_index_leaves_out(folder, caplog):
  change_index(folder, **{STALE: None, "model.norm.weight": None})
  found = stored_tensors(folder)
  assert found[STALE].file.name == SECOND  # transformers takes the last one
  assert caplog.messages == [
    f"{folder}: {STALE} stands in {FIRST}, {SECOND}; it is read from {SECOND}",
    f"{folder}: {INDEX} does not name {STALE}; it is read from {SECOND}; the same holds for 1 more",
  ]


def test_files_beside_the_index(folder, caplog):
  zeros = {name: np.zeros_like(value) for name, value in whole().items()}
  stale = "model-00001-of-00003.safetensors"
  for name in (SINGLE, stale, "consolidated.safetensors", "model.fp16.safetensors"):
    save_file(zeros, folder / name)
  (folder / "pytorch_model.bin").write_bytes(b"no tensors")
  (folder / "model.safetensors.index.fp16.json").write_text("{}")
  np.testing.assert_array_equal(logits(folder), logits(MODEL))
  said = f"{stale}, {SINGLE} is not read, since {INDEX} does not name it"
  assert caplog.messages[1:] == [f"{folder}: {said}"]


def test_two_names_of_one_tensor(folder):
  change_index(folder, **{STALE: FIRST, "embed_tokens.weight": SECOND})
  rest = load_file(folder / SECOND)
  save_file(rest | {"embed_tokens.weight": rest.pop(STALE)}, folder / SECOND)
  message = f"embed_tokens.weight in {SECOND} and {STALE} in {FIRST} are one tensor of the model"
  with pytest.raises(ValueError, match=message) as error:
    huggingface.load(folder)
  assert "\n" not in str(error.value)


def test_an_adapter_beside_the_model(folder, caplog):
  change_index(folder, **{STALE: FIRST})
  (folder / "adapter_config.json").write_text("{}")
  stored_tensors(folder)
  assert "has an adapter (adapter_config.json), which is not applied" in caplog.messages[0]


@pytest.mark.parametrize(
  ("name", "file", "message"),
  [
    (STALE, "", "weight_map is '': a name below"),
    (STALE, "a/../../b.safetensors", "weight_map is 'a/../../b.safetensors': a name below"),
    ("model.norm.weight", FIRST, f"has model.norm.weight in {FIRST}, but {SECOND} holds it"),
    ("model.other", FIRST, f"has model.other in {FIRST}, but no file holds it"),
    ("model.other", "x.safetensors", "names files that are absent: x.safetensors"),
  ],
)
def test_an_index_that_is_wrong(folder, name, file, message):
  change_index(folder, **{name: file})
  with pytest.raises(ValueError, match=message) as error:
    huggingface.load(folder)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("names", "said"),
  [
    ([FIRST, SECOND], f"{FIRST} is one of several files, which are read by {INDEX}; bring it back"),
    (["model.fp16.safetensors"], f"model.fp16.safetensors is a variant; rename it to {SINGLE}"),
    (["model.safetensors.index.fp16.json"], f"is a variant; rename it to {INDEX}"),
    (["consolidated.safetensors", "params.json"], "consolidated.safetensors has other names"),
    (["adapter_model.safetensors"], "adapter_model.safetensors is an adapter; merge it"),
    (["pytorch_model.bin"], "pytorch_model.bin is not read; load it with transformers"),
    (["model.gguf"], "model.gguf is read by itself; give the file in place of its folder"),
    ([], "other formats are not read"),
  ],
)
def test_what_to_do_about_other_formats(tmp_path, names, said):
  (tmp_path / "config.json").write_text((MODEL / "config.json").read_text())
  for name in names:
    (tmp_path / name).touch()
  with pytest.raises(ValueError, match=f"has neither {SINGLE} nor {INDEX}; .*{said}") as error:
    huggingface.load(tmp_path)
  assert "\n" not in str(error.value)
