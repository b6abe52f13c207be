import hashlib
import re

import grain
import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.example_serializer import ExampleSerializer
from tensorflow_datasets.proto import tf_example_pb2

from resjax.data import array_records, storage, text_corpus
from resjax.data.config import SPLITS
from resjax.data.readers import Document
from resjax.data.sources import Source
from resjax.data.text_digest import TextHasher
from tests.data.conftest import make_texts


def _place(text):
  digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
  return int.from_bytes(digest[:8], "big") / 2**64


def _built(config, name="a"):
  _, path = text_corpus.build(name, config)
  return {
    split: [record["text"].decode() for record in storage.read(path, split)]
    for split in config.splits
  }


def test_splits_follow_the_hash_and_hold_every_document_once(folder_config):
  texts = make_texts(1000)
  found = _built(folder_config({"a": texts}))
  expected = {split: [] for split in SPLITS}
  for text in texts:
    place = _place(text)
    split = "test" if place < 0.1 else "validation" if place < 0.2 else "train"
    expected[split].append(text)
  assert found == expected  # They are in the order of the files.
  for split in ("validation", "test"):  # Binomial: mean 100, standard deviation 9.5.
    assert 60 < len(found[split]) < 140


def test_shards_hold_every_document_in_order(folder_config, monkeypatch):
  monkeypatch.setattr(text_corpus, "_SHARD_BYTES", 500)
  texts = make_texts(200)
  texts[100] = "long " * 500
  config = folder_config({"a": texts}, validation_fraction=0.0, test_fraction=0.0)
  assert _built(config)["train"] == texts
  _, path = text_corpus.build("a", config)
  lengths = tfds.builder_from_directory(path).info.splits["train"].shard_lengths
  sizes = np.add.reduceat([len(text.encode()) for text in texts], np.cumsum([0, *lengths[:-1]]))
  assert sum(lengths) == 200 and len(lengths) > 10 and all(sizes[:-1] >= 500)


def test_source_that_changes_while_it_is_read_is_refused(folder_config, tmp_path):
  texts = make_texts(30)
  config = folder_config({"a": texts})
  calls = []

  def documents():
    calls.append(1)
    change = len(calls) > 1
    return (Document(str(i), text + "!" * change) for i, text in enumerate(texts))

  source, hasher = Source("x", [], documents), TextHasher()
  for document in texts:
    hasher.add(document)
  builder = text_corpus.TextCorpus(
    folder=tmp_path / "x", name="a", source=source, text=hasher.digest(), config=config
  )
  with pytest.raises(ValueError, match=re.escape("of corpus a changed while it was read")):
    builder.download_and_prepare()
  assert not array_records.records_folder(tmp_path / "x", text_corpus.TextCorpus).exists()


def test_a_corpus_that_is_there_is_not_listed_again(folder_config, monkeypatch):
  config = folder_config({"a": make_texts(30)})
  text = text_corpus.digest("a", text_corpus.opened("a", config), config.root)
  built = text_corpus.build("a", config, text=text)
  monkeypatch.setattr(text_corpus, "open_source", None)
  assert text_corpus.build("a", config, text=text) == built


def test_weight_does_not_rebuild_but_files_and_fractions_do(folder_config):
  texts = make_texts(30)
  first, path = text_corpus.build("a", folder_config({"a": texts}))
  time = path.stat().st_mtime_ns
  config = folder_config({"a": []}, weights={"a": 3.0})  # The files stay as they are.
  assert text_corpus.build("a", config) == (first, path) and path.stat().st_mtime_ns == time
  assert text_corpus.build("a", folder_config({"a": []}, test_fraction=0.2))[0] != first
  assert text_corpus.build("a", folder_config({"a": [*texts[:5], "new"]}))[0] != first


def test_records_are_the_same_bytes_in_every_process(folder_config, monkeypatch):
  """Protobuf has an order of its own in every process; here it is always the wrong one."""

  def backwards(self, example):
    features = self.get_tf_example(example).features.feature
    parts = [tf_example_pb2.Example() for _ in features]
    for part, name in zip(parts, sorted(features, reverse=True), strict=True):
      part.features.feature[name].CopyFrom(features[name])
    return b"".join(part.SerializeToString() for part in parts)  # a message may come in parts

  monkeypatch.setattr(ExampleSerializer, "serialize_example", backwards)
  config = folder_config({"a": ["depth"]}, validation_fraction=0.0, test_fraction=0.0)
  _, path = text_corpus.build("a", config)
  (file,) = path.glob("*array_record*")
  wanted = tf_example_pb2.Example()
  for name, value in (("id", b"0000.txt#0"), ("text", b"depth")):
    wanted.features.feature[name].bytes_list.value.append(value)
  (record,) = grain.sources.ArrayRecordDataSource(str(file))
  assert record == wanted.SerializeToString(deterministic=True)
