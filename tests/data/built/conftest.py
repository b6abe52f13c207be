"""A small data set of two corpora, built once, a copy of it for every test, and what lies there."""

import os
import shutil
from pathlib import Path

import pytest

from resjax.data import built, corpus_files, dataset, storage
from resjax.data.config import DataConfig, TokenizerConfig
from tests.data.conftest import make_texts, write_folder


def config_of(folder, text=None, **changes):
  """Returns a config with its root in `folder`, and its sources there or in `text`."""
  corpora = {name: {"source": str((text or folder) / "text" / name)} for name in ("a", "b")}
  values = {"root": str(folder / "root"), "seq_len": 16, "corpora": corpora}
  values |= {"validation_fraction": 0.1, "test_fraction": 0.1}
  return DataConfig(**values | {"tokenizer": TokenizerConfig("bpe", 300, 10_000)} | changes)


@pytest.fixture(scope="session")
def original(tmp_path_factory):
  """Builds a small data set of two corpora once; returns the folder with text and root."""
  folder = tmp_path_factory.mktemp("original")
  write_folder(folder / "text" / "a", make_texts(60))
  write_folder(folder / "text" / "b", make_texts(40, seed=1))
  dataset.build(config_of(folder))
  return folder


@pytest.fixture
def copied(original, tmp_path):
  """Returns a copy of the built data set, its config and its fingerprint."""
  shutil.copytree(original / "root", tmp_path / "root")
  config = config_of(tmp_path, original)
  return tmp_path / "root", config, next((tmp_path / "root").glob("summary-*")).name[8:20]


@pytest.fixture(autouse=True)
def unsettled(monkeypatch):
  """Text counts as just written, so that no digests of it are kept beside the built data."""
  monkeypatch.setattr(corpus_files, "_TICK_NS", 1 << 62)


@pytest.fixture
def warnings(monkeypatch):
  """Collects the lines that built data are reported in."""
  lines = []
  for module in (built, storage, dataset):
    monkeypatch.setattr(module.logging, "warning", lambda text, *words: lines.append(text % words))
  return lines


def files(root):
  """Returns the content of all files under a folder, and the names of its folders and links."""
  found = {}
  for path in sorted(Path(root).rglob("*")):
    name = path.relative_to(root).as_posix()
    if path.is_symlink():
      found[name] = os.readlink(path)
    else:
      found[name] = path.read_bytes() if path.is_file() else None
  return found


def files_of_kinds(root):
  """Returns name, size and time of all that lies under a folder, without opening pipes."""
  return {
    path.relative_to(root).as_posix(): (path.lstat().st_size, path.lstat().st_mtime_ns)
    for path in sorted(root.rglob("*"))
  }


def find_all(config, mark):
  """Reads all that training and measuring read; returns None if there is no summary."""
  found = dataset.find(config.root, mark)
  texts = dataset.find_texts(config.root, mark)
  return found and texts and found
