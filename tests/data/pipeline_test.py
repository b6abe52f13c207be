import grain
import numpy as np
import orbax.checkpoint as ocp
import pytest

from resjax.data import storage
from resjax.data.dataset import build
from resjax.data.packing import split_rows
from resjax.data.pipeline import evaluation_batches, train_batches
from tests.data.conftest import make_texts, write_folder

EOT = 256


def _take(iterator, count):
  return [next(iterator) for _ in range(count)]


def _assert_equal(ones, twos):
  assert len(ones) == len(twos)
  for one, two in zip(ones, twos, strict=True):
    assert one.keys() == two.keys() == {"inputs", "targets", "segment_ids", "positions", "bytes"}
    for name in one:
      np.testing.assert_array_equal(one[name], two[name])


def _row_ids(batches):
  """Returns the rows of batches as tuples, without rows of padding."""
  rows = []
  for batch in batches:
    for inputs, targets, segments in zip(
      batch["inputs"], batch["targets"], batch["segment_ids"], strict=True
    ):
      if segments.any():
        rows.append((*inputs.tolist(), *targets.tolist()))
  return rows


def _all_rows(dataset, name, split):
  tokens = [r["tokens"] for r in storage.read(dataset.corpora[name].rows, split)]
  return _row_ids([split_rows(np.stack(tokens))])


@pytest.fixture
def config(folder_config):
  texts = {"a": make_texts(60), "b": make_texts(25, seed=1, words=15)}
  return folder_config(texts, weights={"a": 2.0, "b": 1.0})


@pytest.fixture
def dataset(config):
  return build(config)


def test_batches_are_rows_of_the_corpus(folder_config):
  config = folder_config({"a": make_texts(60)})
  dataset = build(config)
  rows = _all_rows(dataset, "a", "train")
  epoch = len(rows) // 4
  batches = _take(train_batches(config, dataset, batch_size=4, seed=0), 2 * epoch + 2)
  assert batches[0]["inputs"].shape == (4, 16) and batches[0]["inputs"].dtype == np.int32
  seen = _row_ids(batches)
  first, second = seen[: len(rows)], seen[len(rows) : 2 * len(rows)]
  assert sorted(first) == sorted(second) == sorted(rows)  # Every row comes once per epoch.
  assert first != rows and first != second  # Each epoch has its own order.


def test_order_is_a_function_of_the_seed(config, dataset):
  one, same, other = (
    _take(train_batches(config, dataset, batch_size=6, seed=seed), 5) for seed in (3, 3, 4)
  )
  _assert_equal(one, same)
  assert _row_ids(one) != _row_ids(other)


@pytest.mark.parametrize("parts", [[range(4), range(4, 8)], [(0, 1, 6), (2,), (3, 4, 5, 7)]])
def test_stream_does_not_depend_on_who_reads_which_rows(config, dataset, parts):
  whole = _take(train_batches(config, dataset, batch_size=8, seed=0), 40)
  for rows in parts:
    own = _take(train_batches(config, dataset, batch_size=8, seed=0, rows=rows), 40)
    _assert_equal(own, [{k: value[list(rows)] for k, value in batch.items()} for batch in whole])


@pytest.mark.parametrize("stop", [0, 3, 12, 100])
def test_resume_is_exact_within_and_across_epochs(config, dataset, stop):
  rows = len(_all_rows(dataset, "b", "train"))
  assert 3 * 4 < rows < 100 * 4 / 3  # 100 batches pass the end of an epoch of the smaller corpus
  iterator = train_batches(config, dataset, batch_size=4, seed=0)
  _take(iterator, stop)
  state = iterator.get_state()
  expected = _take(iterator, 30)
  fresh = train_batches(config, dataset, batch_size=4, seed=0)
  _take(fresh, 2)
  fresh.set_state(state)
  _assert_equal(_take(fresh, 30), expected)


def test_state_moves_to_other_rows(config, dataset):
  whole = train_batches(config, dataset, batch_size=8, seed=0)
  _take(whole, 7)
  half = train_batches(config, dataset, batch_size=8, seed=0, rows=range(4, 8))
  half.set_state(whole.get_state())
  for _ in range(5):
    expected = {name: value[4:] for name, value in next(whole).items()}
    _assert_equal([next(half)], [expected])


def test_state_survives_a_checkpoint(config, dataset, tmp_path):
  iterator = train_batches(config, dataset, batch_size=4, seed=0)
  _take(iterator, 9)
  with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
    manager.save(1, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(iterator)))
    manager.wait_until_finished()
    expected = _take(iterator, 5)
    fresh = train_batches(config, dataset, batch_size=4, seed=0)
    restore = grain.checkpoint.CheckpointRestore(fresh)
    manager.restore(1, args=ocp.args.Composite(data=restore))
  _assert_equal(_take(fresh, 5), expected)


def test_weights_decide_the_shares_of_rows(folder_config):
  texts = {"a": make_texts(50), "b": make_texts(50, seed=1), "c": make_texts(10, seed=2)}
  # The rows are so long that no two corpora have the same row.
  config = folder_config(texts, weights={"a": 0.5, "b": 0.2, "c": 0.3}, seq_len=64)
  dataset = build(config)
  owner = {row: name for name in texts for row in _all_rows(dataset, name, "train")}
  assert len(owner) == sum(len(_all_rows(dataset, name, "train")) for name in texts)
  batches = _take(train_batches(config, dataset, batch_size=10, seed=0), 100)
  names = [owner[row] for row in _row_ids(batches)]
  shares = {name: names.count(name) / 1000 for name in texts}
  assert shares == pytest.approx({"a": 0.5, "b": 0.2, "c": 0.3}, abs=0.002)
  first = [names[:10].count(name) for name in texts]
  assert first == pytest.approx([5, 2, 3], abs=1)  # The corpora take turns.


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("batch_size", [2, 6, 1000])
def test_evaluation_sees_every_row_once_in_order(dataset, batch_size, parts):
  chosen = np.arange(batch_size).reshape(parts, -1)
  hosts = [
    list(evaluation_batches(dataset, "validation", batch_size=batch_size, rows=rows))
    for rows in chosen
  ]
  expected = _all_rows(dataset, "a", "validation") + _all_rows(dataset, "b", "validation")
  steps = list(zip(*hosts, strict=True))
  assert len(steps) == -(-len(expected) // batch_size)
  for batch in hosts[0]:
    assert batch["inputs"].shape == (batch_size // parts, 16)
  assert _row_ids([batch for step in steps for batch in step]) == expected


def test_max_rows_are_spread_over_the_split(dataset):
  everything = _row_ids(evaluation_batches(dataset, "train", batch_size=8))
  some = _row_ids(evaluation_batches(dataset, "train", batch_size=8, max_rows=12))
  places = [everything.index(row) for row in some]
  assert len(places) == 12 and places == sorted(set(places))
  gaps = np.diff([*places, len(everything)])
  assert gaps.max() - gaps.min() <= 1
  more = evaluation_batches(dataset, "train", batch_size=8, max_rows=10**9)
  assert _row_ids(more) == everything


@pytest.mark.parametrize("max_rows", [0, 12])
def test_rows_of_one_corpus_are_its_part_of_all(dataset, max_rows):
  options = {"batch_size": 4, "max_rows": max_rows}
  parts = [
    _row_ids(evaluation_batches(dataset, "train", corpus=name, **options)) for name in ("a", "b")
  ]
  assert all(parts)
  assert [*parts[0], *parts[1]] == _row_ids(evaluation_batches(dataset, "train", **options))


def test_a_corpus_without_a_row_among_those_that_are_taken_has_its_first(dataset):
  found = evaluation_batches(dataset, "train", batch_size=4, max_rows=1, corpus="b")
  assert _row_ids(found) == _all_rows(dataset, "b", "train")[:1]


def test_bad_arguments_are_named(config, dataset, folder_config):
  with pytest.raises(ValueError, match="batch_size is 0"):
    evaluation_batches(dataset, "test", batch_size=0)
  with pytest.raises(ValueError, match=r"rows are \[1, 2\]; allowed: some of 0 to 1"):
    train_batches(config, dataset, batch_size=2, seed=0, rows=(1, 2))
  with pytest.raises(ValueError, match="max_rows is -1"):
    evaluation_batches(dataset, "test", batch_size=2, max_rows=-1)
  no_test = folder_config({"a": make_texts(20)}, test_fraction=0.0)
  with pytest.raises(ValueError, match="split 'test' is not there; built: train, validation"):
    evaluation_batches(build(no_test), "test", batch_size=2)
  other = folder_config({"a": [], "c": []})
  with pytest.raises(ValueError, match="names a, c; the dataset was built with a, b"):
    train_batches(other, dataset, batch_size=2, seed=0)


def test_batches_are_those_built_whatever_became_of_the_source(config, dataset, tmp_path):
  def batches():
    yield from _take(train_batches(config, dataset, batch_size=4, seed=0), 20)
    yield from evaluation_batches(dataset, "validation", batch_size=4)

  expected = list(batches())
  files = sorted((tmp_path / "root").rglob("*"))
  write_folder(tmp_path / "text" / "a", ["a changed document"])
  _assert_equal(list(batches()), expected)
  assert sorted((tmp_path / "root").rglob("*")) == files
  assert build(config).fingerprint != dataset.fingerprint
