"""Corpora in another object store that epath and fsspec know; a dictionary stands for S3."""

import fsspec
import pytest
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from resjax.base import locations
from resjax.data.config import CorpusConfig, SettingNames
from resjax.data.sources import open_source


class Dictionary(MemoryFileSystem):
  protocol = ("s3",)
  store, pseudo_dirs = {}, [""]

  @classmethod
  def _strip_protocol(cls, path):
    return super()._strip_protocol(str(path).removeprefix("s3://"))


@pytest.fixture
def s3(monkeypatch):
  monkeypatch.setattr(locations, "_installed", lambda module: True)
  monkeypatch.setitem(_registry, "s3", Dictionary)
  backend.fsspec_backend._get_filesystem.cache_clear()
  yield fsspec.filesystem("s3")
  Dictionary.store.clear()
  backend.fsspec_backend._get_filesystem.cache_clear()
  locations._prepare.cache_clear()


def test_documents_of_another_store(s3):
  for number in range(4):
    s3.pipe(f"s3://bucket/text/{number}.txt", f"document {number}".encode())
  for source in ("s3://bucket/text", "s3://bucket/text/*.txt", "s3://bucket/te*/*.txt"):
    documents = open_source(SettingNames.of_corpus("c"), CorpusConfig(source)).documents()
    assert [document.text for document in documents] == [f"document {n}" for n in range(4)]
  (document,) = open_source(
    SettingNames.of_corpus("c"), CorpusConfig("s3://bucket/text/2.txt")
  ).documents()
  assert document.text == "document 2"
