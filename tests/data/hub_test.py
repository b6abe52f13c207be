"""Models on the hub: only what is read is fetched, a revision, offline afterwards, one line."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from resjax.data import hub, model_files
from resjax.data.hub import INDEX, HubName
from resjax.interop import huggingface
from tests.helpers import gguf_files, pretrained
from tests.helpers.hub_server import serve

ROOT = pathlib.Path(__file__).parents[2]
DECOYS = ("pytorch_model.bin", "onnx/model.onnx", "model.fp16.safetensors", "README.md", "x.gguf")
# Prints for each name where it is, or why not.
FIND = """
import sys
from resjax.data import hub, model_files
for name in sys.argv[1:]:
  try:
    found = model_files.find(name)
    print(found.name, found.place)
  except ValueError as error:
    print(f"error: {error}")
"""


def contents(folder):
  paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
  return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """A model in three files with things beside it, another revision of it, and a GGUF file."""
  place = tmp_path_factory.mktemp("hub")
  sharded = contents(pretrained.folder(place, "llama"))
  single = contents(pretrained.folder(place, "qwen3"))
  file = gguf_files.write(place / "small.gguf", "llama").read_bytes()
  decoys = dict.fromkeys(DECOYS, b"not to be fetched")
  return {
    "some-one/Tiny_1.5": {"main": sharded | decoys, "v2": single},
    "some-one/files": {"main": {"small.gguf": file, "large.gguf": b"no"}},
    "some-one/broken": {"main": {"config.json": b"{}", INDEX: b"[]"}},
    "some-one/torch": {"main": {"config.json": b"{}", "pytorch_model.bin": b"no"}},
  }


def run(server, home, *names, code=FIND, **env):
  """The lines that a process prints which asks a server, or none."""
  url = server.url if server else "http://127.0.0.1:9"
  env = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **env}
  done = subprocess.run(
    [sys.executable, "-c", code, *names],
    capture_output=True, text=True, cwd=home, check=True,
    env=os.environ | {"PYTHONPATH": str(ROOT), "HF_TOKEN": ""} | env,
  )  # fmt: skip
  return done.stdout.splitlines()


def place_of(line):
  return pathlib.Path(line.partition(" ")[2])


def test_only_what_is_read_is_fetched_and_found_again_without_a_server(models, tmp_path):
  name = "some-one/Tiny_1.5"
  with serve(models) as server:
    (line,) = run(server, tmp_path, name)
    fetched = set(models[name]["main"]) - set(DECOYS) - {"reference.npz"}
    assert sorted(server.sent) == sorted(fetched)
    before = len(server.sent)
    assert run(server, tmp_path, name) == [line]
    assert len(server.sent) == before  # the second time none is sent again
  assert line.startswith("Tiny_1.5 ") and place_of(line).is_relative_to(tmp_path / "hub")
  for offline in ({}, {"HF_HUB_OFFLINE": "1"}):
    assert run(None, tmp_path, name, **offline) == [line]
  both = place_of(line), pretrained.GOLDEN / "llama"
  found, expected = (huggingface.load(path) for path in both)
  np.testing.assert_array_equal(found.embed.embedding, expected.embed.embedding)
  assert huggingface.tokenizer(place_of(line)).vocab_size == 61


def test_a_revision_and_a_file(models, tmp_path):
  with serve(models) as server:
    one, other, file = run(
      server, tmp_path, "some-one/Tiny_1.5", "some-one/Tiny_1.5@v2", "some-one/files:small.gguf"
    )
    assert server.sent.count("small.gguf") == 1 and "large.gguf" not in server.sent
  texts = [(place_of(line) / "config.json").read_text() for line in (one, other)]
  assert [json.loads(text)["model_type"] for text in texts] == ["llama", "qwen3"]
  assert file.startswith("small ") and place_of(file).name == "small.gguf"
  assert huggingface.read_config(place_of(file)).num_layers == 3
  (again,) = run(None, tmp_path, "some-one/files:small.gguf")
  assert again == file


def test_what_cannot_be_fetched_is_said_in_one_line(models, tmp_path):
  names = {
    "some-one/nothing": "neither a file or folder here nor a model that .*: the hub has no such",
    "some-one/Tiny_1.5@v9": "it has no revision 'v9': give a branch, a tag or a commit",
    "some-one/secret": "it is gated: accept its terms on its page, and set HF_TOKEN",
    "some-one/files:other.gguf": "some-one/files has no file other.gguf on the hub",
    "some-one/files": "has no file config.json .*; give some-one/files:small.gguf .*1 more",
    "some-one/torch": "some-one/torch has no file model.safetensors on the hub$",
    "some-one/broken": "",
  }
  with serve(models, gated=["some-one/secret"]) as server:
    lines = run(server, tmp_path, *names)
  assert lines.pop().startswith("broken ")  # whoever reads the folder says what is wrong there
  for line, words in zip(lines, names.values(), strict=False):
    assert line.startswith("error: ")
    assert re.search(words, line), line
  lines = run(None, tmp_path, "some-one/nothing", HF_HUB_OFFLINE="1")
  assert "the hub was not reached, and the cache has not all of its files" in lines[0]
  assert len(lines) == 1
  (line,) = run(None, tmp_path, "some-one/nothing", HF_ENDPOINT="http://me:secret@127.0.0.1:9")
  assert "http://***@127.0.0.1:9" in line and "secret" not in line


@pytest.mark.parametrize("kept", ["config.json", "tokenizer.json"])
def test_a_cache_with_another_programs_files_is_not_read_offline(kept, tmp_path):
  """It does not say which files the model has, as those of earlier releases of the library."""
  folder = tmp_path / "hub" / "models--some-one--Tiny_1.5"
  (snapshot := folder / "snapshots" / (commit := "0123" * 10)).mkdir(parents=True)
  (snapshot / kept).write_text("{}")
  (folder / "refs").mkdir()
  (folder / "refs" / "main").write_text(commit)
  absent = {"config.json": "model.safetensors", "tokenizer.json": "config.json"}[kept]
  names = ["some-one/Tiny_1.5", "some-one/Tiny_1.5:a.gguf"]
  lines = run(None, tmp_path, *names, HF_HUB_OFFLINE="1") + run(None, tmp_path, names[1])
  for said, file in zip(lines, [absent, "a.gguf", "a.gguf"], strict=True):
    assert f"the hub was not reached, and the cache has no {file}: go online" in said


def test_a_mistyped_path_asks_no_server(tmp_path, monkeypatch):
  monkeypatch.setattr(hub, "fetch", lambda *_: pytest.fail("the hub was asked"))
  monkeypatch.chdir(tmp_path)
  (tmp_path / "runs").mkdir()
  for named in ("runs/tinny", "runs/tiny:a.gguf", "runs/tiny@v1", pathlib.Path("other/model")):
    assert not model_files.is_one(named)
    assert model_files.title(named) == pathlib.Path(named).name.removesuffix(".gguf")
    with pytest.raises(ValueError, match=r"has no config.json: it is not here.*; give a folder"):
      model_files.find(named).json("config.json", dict)
  with pytest.raises(
    ValueError, match="not here; the folder runs is, so that the hub is not asked; give"
  ):
    huggingface.load("runs/tinny")
  assert model_files.is_one("other/model")


def test_an_incomplete_snapshot_is_not_read_offline(models, tmp_path):
  with serve(models) as server:
    (line,) = run(server, tmp_path, "some-one/Tiny_1.5")
  (place_of(line) / "model-00002-of-00003.safetensors").unlink()
  (said,) = run(None, tmp_path, "some-one/Tiny_1.5", HF_HUB_OFFLINE="1")
  assert said.startswith("error: 'some-one/Tiny_1.5'") and "has not all of its files" in said


def test_a_local_folder_of_that_name_goes_first(models, tmp_path):
  made = pretrained.folder(tmp_path / "some-one", "llama").rename(tmp_path / "some-one/Tiny_1.5")
  with serve(models) as server:
    assert run(server, tmp_path, "some-one/Tiny_1.5") == ["Tiny_1.5 some-one/Tiny_1.5"]
    assert server.asked == []
  assert model_files.is_one(str(made))


@pytest.mark.parametrize(
  ("text", "found"),
  [
    ("a/b", HubName("a/b")),
    ("a/b@refs/pr/1", HubName("a/b", "refs/pr/1")),
    ("a/b@v1:q/c.gguf", HubName("a/b", "v1", "q/c.gguf")),
    *((text, None) for text in ("", "a", "a/b/c", "/a/b", "./a", "../a", "a/b:c.bin", "a/")),
  ],
)  # fmt: skip
def test_names(text, found):
  assert HubName.of(text) == found
  assert str(found) == (text if found else "None")


def test_the_extra_is_named_where_the_library_is_missing(monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  words = r"no file or folder 'nobody/here' here; .* needs huggingface_hub, .*'resjax\[hub\]'$"
  with pytest.raises(ValueError, match=words):
    model_files.find("nobody/here")
