import hashlib
import re

import numpy as np
import pytest

from resjax.data import storage, text_corpus
from resjax.data.config import SPLITS
from resjax.data.readers import Document
from resjax.data.sources import Source
from tests.data.conftest import make_texts


def _plan(texts, config):
  def documents():
    return (Document(str(i), text) for i, text in enumerate(texts))

  return text_corpus.make_plan("mine", Source("x", documents), config)


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
  splits = _built(folder_config({"a": texts}))
  expected = {split: [] for split in SPLITS}
  for text in texts:
    place = _place(text)
    split = "test" if place < 0.1 else "validation" if place < 0.2 else "train"
    expected[split].append(text)
  assert splits == expected  # in the order of the files
  for split in ("validation", "test"):  # binomial: 100 documents, standard deviation 9.5
    assert 60 < len(splits[split]) < 140


def test_adding_documents_moves_none(folder_config):
  texts = make_texts(300)
  few = _plan(texts[:200], folder_config({"a": texts}))
  more = _plan(texts, folder_config({"a": texts}))
  np.testing.assert_array_equal(few.split, more.split[:200])


def test_duplicates_empty_and_undecodable_are_dropped_and_counted(folder_config):
  texts = make_texts(40)
  given = [*texts[:20], None, "", texts[3], " \n", *texts[20:], texts[3], texts[30]]
  plan = _plan(given, folder_config({"a": texts}))
  assert plan.dropped == {"duplicate": 3, "empty": 2, "undecodable": 1}
  np.testing.assert_array_equal(np.flatnonzero(plan.split < 0), [20, 21, 22, 23, 44, 45])
  assert plan.size.sum() == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("count", [3, 4, 5, 20])
@pytest.mark.parametrize("seed", range(20))
def test_small_corpora_fill_every_split(folder_config, count, seed):
  plan = _plan(make_texts(count, seed), folder_config({"a": ["x"]}, test_fraction=0.01))
  counts = [int(np.sum(plan.split == index)) for index in range(3)]
  assert min(counts) >= 1 and sum(counts) == count


def test_extreme_fractions_leave_something_to_train_on(folder_config):
  config = folder_config({"a": ["x"]}, validation_fraction=0.999, test_fraction=0.0)
  assert np.sum(_plan(make_texts(30), config).split == SPLITS.index("train")) == 1


def test_too_few_documents_name_the_fractions(folder_config):
  message = "config.data.corpora.mine has 2 usable documents"
  with pytest.raises(ValueError, match=message) as caught:
    _plan(["a", "b", "a", ""], folder_config({"a": ["x"]}))
  assert "config.data.validation_fraction and test_fraction to 0" in str(caught.value)
  everything = folder_config({"a": ["x"]}, validation_fraction=0.0, test_fraction=0.0)
  assert _plan(["a", "b"], everything).split.tolist() == [0, 0]


def test_shards_hold_every_document_in_order(folder_config, monkeypatch):
  monkeypatch.setattr(text_corpus, "_SHARD_BYTES", 500)
  texts = make_texts(200)
  texts[100] = "long " * 500
  config = folder_config({"a": texts}, validation_fraction=0.0, test_fraction=0.0)
  plan = _plan(texts, config)
  lengths = plan.shards("train")
  sizes = np.add.reduceat(plan.size, np.cumsum([0, *lengths[:-1]]))
  assert sum(lengths) == 200 and len(lengths) > 10 and all(sizes[:-1] >= 500)
  assert _built(config)["train"] == texts
  _, path = text_corpus.build("a", config)
  assert len(list(path.glob("*.array_record-*"))) == len(lengths)


def test_source_that_changes_while_it_is_read_is_refused(folder_config, tmp_path):
  texts = make_texts(30)
  config = folder_config({"a": texts})
  calls = []

  def documents():
    calls.append(1)
    change = len(calls) > 1
    return (Document(str(i), text + "!" * change) for i, text in enumerate(texts))

  builder = text_corpus.TextCorpus(
    folder=tmp_path / "x", name="a", source=Source("x", documents), config=config
  )
  with pytest.raises(ValueError, match=re.escape("of corpus a changed while it was read")):
    builder.download_and_prepare()
  assert not storage.built(tmp_path / "x", text_corpus.TextCorpus).exists()


def test_weight_does_not_rebuild_but_files_and_fractions_do(folder_config):
  texts = make_texts(30)
  first, path = text_corpus.build("a", folder_config({"a": texts}))
  time = path.stat().st_mtime_ns
  config = folder_config({"a": []}, weights={"a": 3.0})  # the files stay as they are
  assert text_corpus.build("a", config) == (first, path) and path.stat().st_mtime_ns == time
  assert text_corpus.build("a", folder_config({"a": []}, test_fraction=0.2))[0] != first
  assert text_corpus.build("a", folder_config({"a": [*texts[:5], "new"]}))[0] != first
