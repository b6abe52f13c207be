"""Batches of synthetic tasks: aligned rows, answers as targets, the same for all processes."""

import numpy as np
import pytest

from resjax.data.config import DataConfig, TokenizerConfig
from resjax.data.dataset import build
from resjax.data.pipeline import evaluation_batches, task_of, train_batches
from resjax.data.synthetic.asked import by_level

SOURCE = "synthetic:hops?elements=4&hops=2&length=16&count=300"
V, T = 7, 17


def config(root, source=SOURCE, tokenizer="synthetic", vocab_size=V, seq_len=T, **corpora):
  return DataConfig(
    root=str(root),
    seq_len=seq_len,
    corpora={"task": {"source": source}, **corpora},
    tokenizer=TokenizerConfig(tokenizer, vocab_size),
    validation_fraction=0.2,
    test_fraction=0.1,
  )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  made = config(tmp_path_factory.mktemp("root"))
  return made, build(made)


def answered(inputs):
  """What is to be answered in a row, by following the hops."""
  image = {inputs[1 + 2 * i]: inputs[2 + 2 * i] for i in range(4)}
  targets = [-1] * 9
  for t in range(9, T, 2):
    once = image[inputs[t + 1]]
    targets += [-1, once if inputs[t] == 4 else image[once]]
  return targets


def test_each_row_is_a_document_with_its_answers(data):
  _, dataset = data
  task = task_of(dataset)
  known = {tuple(task.document(index).tolist()) for index in range(300)}
  seen = {}
  for split in dataset.splits:
    batches = list(evaluation_batches(dataset, split, batch_size=7))
    inputs = np.concatenate([batch["inputs"] for batch in batches])
    used = np.concatenate([batch["segment_ids"] for batch in batches])[:, 0] == 1
    targets = np.concatenate([batch["targets"] for batch in batches])
    assert (targets[~used] == -1).all() and (inputs[used, 0] == 6).all()
    for row, expected in zip(inputs[used].tolist(), targets[used].tolist(), strict=True):
      assert answered(row) == expected
    seen[split] = {tuple(row) for row in inputs[used, 1:].tolist()}
  assert set.union(*seen.values()) == known and sum(map(len, seen.values())) == len(known)


def test_processes_read_their_rows_and_resume(data):
  made, dataset = data
  whole = train_batches(made, dataset, batch_size=6, seed=1)
  half = train_batches(made, dataset, batch_size=6, seed=1, rows=(0, 4))
  for _ in range(3):
    batch, part = next(whole), next(half)
    for name in batch:
      np.testing.assert_array_equal(batch[name][[0, 4]], part[name])
  again = train_batches(made, dataset, batch_size=6, seed=1)
  again.set_state(whole.get_state())
  np.testing.assert_array_equal(next(again)["targets"], next(whole)["targets"])


def test_levels_split_the_answers(data):
  _, dataset = data
  batch = next(evaluation_batches(dataset, "validation", batch_size=8))
  parts = dict(by_level(batch, task_of(dataset)))
  assert list(parts) == ["hop_00", "hop_01"]
  asked = [part["targets"] != -1 for part in parts.values()]
  np.testing.assert_array_equal(asked[0] ^ asked[1], batch["targets"] != -1)
  one_hop = np.roll(batch["inputs"], 1, axis=1)[asked[0]]
  assert (one_hop == 4).all()


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"tokenizer": "byte"}, "config.data.tokenizer.name is 'byte'; corpora of synthetic: sources"),
    ({"source": "python-stdlib"}, "config.data.tokenizer.name is 'synthetic'; corpora of"),
    ({"vocab_size": 8}, "config.data.tokenizer.vocab_size is 8; synthetic:hops"),
    ({"seq_len": 16}, "has rows of 17, the end of text included; set that"),
    ({"source": "synthetic:hop"}, "config.data.corpora.task.source: 'synthetic:hop' is no"),
    ({"other": {"source": "python-stdlib"}}, "a synthetic source must be the only corpus"),
  ],
)
def test_settings_that_do_not_fit(changes, words, tmp_path):
  with pytest.raises(ValueError) as error:
    config(tmp_path, **changes)
  assert words in str(error.value)
