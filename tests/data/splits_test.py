import io

import numpy as np
import pytest

from resjax.data.config import SPLITS
from resjax.data.formats import Choice
from resjax.data.readers import Document
from resjax.data.sources import Source
from resjax.data.text_corpus import plan_splits
from tests.data.conftest import make_texts


def _plan(texts, config, left_out=(), listing=None):
  def documents():
    return (Document(str(i), text) for i, text in enumerate(texts))

  source = Source("x", [], documents, look=lambda: Choice("text", (), left_out))
  return plan_splits("a", source, config, listing=listing)


def test_adding_documents_moves_none(folder_config):
  texts = make_texts(300)
  few = _plan(texts[:200], folder_config({"a": texts}))
  more = _plan(texts, folder_config({"a": texts}))
  np.testing.assert_array_equal(few.split, more.split[:200])


def test_duplicates_empty_and_undecodable_are_dropped_and_counted(folder_config):
  texts = make_texts(40)
  given = [*texts[:20], None, "", texts[3], " \n", *texts[20:], texts[3], texts[30]]
  listing = io.StringIO()
  plan = _plan(given, folder_config({"a": texts}), [("x.md", "other format")], listing)
  assert plan.dropped == {"duplicate": 3, "empty": 2, "undecodable": 1, "other format": 1}
  assert [line.split("\t") for line in listing.getvalue().splitlines()] == [
    ["other format", "x.md"],
    ["undecodable", "20"],
    ["empty", "21"],
    ["duplicate", "22"],
    ["empty", "23"],
    ["duplicate", "44"],
    ["duplicate", "45"],
  ]
  np.testing.assert_array_equal(np.flatnonzero(plan.split < 0), [20, 21, 22, 23, 44, 45])
  assert plan.size.sum() == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("count", [3, 4, 5, 20])
@pytest.mark.parametrize("seed", range(20))
def test_small_corpora_fill_every_split(folder_config, count, seed):
  plan = _plan(make_texts(count, seed), folder_config({"a": ["x"]}, test_fraction=0.01))
  counts = [int(np.sum(plan.split == index)) for index in range(3)]
  assert min(counts) >= 1 and sum(counts) == count


def test_splits_have_the_sizes_of_their_fractions(folder_config):
  config = folder_config({"a": ["x"]}, validation_fraction=0.3, test_fraction=0.1)
  split = _plan(make_texts(400), config).split
  for name, share in (("train", 0.6), ("validation", 0.3), ("test", 0.1)):
    assert abs(np.mean(split == SPLITS.index(name)) - share) < 0.05


def test_extreme_fractions_leave_something_to_train_on(folder_config):
  config = folder_config({"a": ["x"]}, validation_fraction=0.999, test_fraction=0.0)
  assert np.sum(_plan(make_texts(30), config).split == SPLITS.index("train")) == 1


def test_too_few_documents_ask_for_more(folder_config):
  message = (
    r"config.data.corpora.a has 2 usable documents in .* \(1 duplicate \(2\), 1 empty \(3\), 0 un"
  )
  with pytest.raises(ValueError, match=message) as caught:
    _plan(["a", "b", "a", ""], folder_config({"a": ["x"]}))
  assert "config.data.corpora.a.source more documents" in str(caught.value)
  everything = folder_config({"a": ["x"]}, validation_fraction=0.0, test_fraction=0.0)
  assert _plan(["a", "b"], everything).split.tolist() == [0, 0]
