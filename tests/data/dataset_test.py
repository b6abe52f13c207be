import itertools
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from resjax.data import built, packed_rows, storage, text_corpus, tokenizer, tokenizer_training
from resjax.data.config import SPLITS
from resjax.data.dataset import build, find
from resjax.data.packing import PADDING, numbers
from resjax.data.pipeline import evaluation_batches
from tests.data.conftest import make_texts, write_folder

ROOT = Path(__file__).parents[2]


def _decoded(summary, name, split):
  """Returns the documents of a split, decoded from its rows alone."""
  coder = tokenizer.load(summary.tokenizer)
  rows = [record["tokens"] for record in storage.read(summary.corpora[name].rows, split)]
  stream = np.concatenate([rows[0][:1], *(row[1:] for row in rows)])
  stream = numbers(stream[stream != PADDING])
  ends = np.flatnonzero(stream == coder.eot_id)
  assert ends[0] == 0 and ends[-1] == len(stream) - 1
  return [coder.decode(stream[a + 1 : b]) for a, b in itertools.pairwise(ends)]


def _all_decoded(summary, name):
  return [text for split in SPLITS for text in _decoded(summary, name, split)]


@pytest.mark.parametrize("name", ["byte", "bpe"])
def test_rows_hold_exactly_the_documents(folder_config, name):
  texts = {"a": make_texts(120), "b": make_texts(40, seed=1)}
  summary = build(folder_config(texts, tokenizer=name))
  for corpus, given in texts.items():
    assert sorted(_all_decoded(summary, corpus)) == sorted(given)
    train = _decoded(summary, corpus, "train")
    assert train == [text for text in given if text in train]  # The order of documents is kept.


def test_a_root_of_an_owner_that_nobody_knows_and_with_the_characters_of_patterns(
  folder_config, tmp_path, monkeypatch
):
  unknown = mock.Mock(side_effect=KeyError("getpwuid(): uid not found: 54321"))
  monkeypatch.setattr(pwd, "getpwuid", unknown)
  config = folder_config({"a": make_texts(30)}, root=str(tmp_path / "a[b] *@2"))
  summary = build(config)
  assert sorted(_all_decoded(summary, "a")) == sorted(make_texts(30))
  assert build(config) == summary
  unknown.assert_not_called()


@pytest.mark.parametrize("name", ["byte", "bpe"])
def test_summary_counts(folder_config, name):
  texts = make_texts(150)
  config = folder_config({"a": [*texts, texts[0], ""]}, tokenizer=name)
  summary = build(config)
  corpus = summary.corpora["a"]
  coder = tokenizer.load(summary.tokenizer)
  assert corpus.dropped == {"duplicate": 1, "empty": 1, "undecodable": 0}
  assert summary.vocab_size == coder.vocab_size == (257 if name == "byte" else 300)
  for split, counts in corpus.splits.items():
    documents = _decoded(summary, "a", split)
    num_tokens = sum(map(len, coder.encode_batch(documents)))
    assert counts.documents == len(documents)
    assert counts.bytes == sum(len(text.encode()) for text in documents)
    assert counts.tokens == num_tokens + len(documents) + 1
    assert counts.rows == len(storage.read(corpus.rows, split)) == -(-(counts.tokens - 1) // 16)
    assert counts.bytes_per_token == pytest.approx(counts.bytes / num_tokens)
    batches = list(evaluation_batches(summary, split, batch_size=4))
    valid = np.concatenate([batch["segment_ids"] for batch in batches]) > 0
    assert counts.fill == pytest.approx(valid.sum() / (counts.rows * 16))
    assert sum(batch["bytes"].sum() for batch in batches) == counts.bytes
  saved = json.loads(summary.path.read_text())
  assert saved["corpora"]["a"]["splits"]["train"]["rows"] == corpus.splits["train"].rows
  assert summary.path.parent / saved["corpora"]["a"]["rows"] == corpus.rows


def test_second_build_does_nothing(folder_config, tmp_path):
  config = folder_config({"a": make_texts(50)}, tokenizer="bpe")
  stages = []
  first = build(config, lambda stage, done, total: stages.append(stage))
  assert {s.split()[0] for s in stages} == {"reading", "writing", "learning", "packing"}
  before = {path: path.stat().st_mtime_ns for path in (tmp_path / "root").rglob("*.json*")}
  before |= {path: path.stat().st_mtime_ns for path in (tmp_path / "root").rglob("*record-*")}
  stages.clear()
  assert build(config, lambda stage, done, total: stages.append(stage)) == first
  assert stages == []
  assert {path: path.stat().st_mtime_ns for path in before} == before


def test_built_data_are_found_without_their_sources(folder_config, tmp_path):
  config = folder_config({"a": make_texts(30), "b": make_texts(20, seed=1)})
  summary, root = build(config), Path(config.root)
  moved = tmp_path / "elsewhere"
  root.rename(moved)
  assert find(root, summary.fingerprint) is None
  found = find(moved, summary.fingerprint)
  assert found.tokenizer.is_file() and len(storage.read(found.corpora["a"].rows, "train")) > 0
  moved.rename(root)
  assert find(root, summary.fingerprint) == summary


def test_what_changes_is_rebuilt(folder_config, tmp_path):
  texts = make_texts(50)
  first = build(folder_config({"a": texts, "b": make_texts(9, 1)}, tokenizer="bpe"))
  write_folder(tmp_path / "text" / "a", [*texts[:-1], "a changed document"])
  second = build(folder_config({"a": [], "b": []}, tokenizer="bpe"))
  assert second.corpora["b"].text == first.corpora["b"].text
  assert second.corpora["a"].text != first.corpora["a"].text
  assert second.tokenizer != first.tokenizer
  assert second.fingerprint != first.fingerprint
  assert "a changed document" in _all_decoded(second, "a")
  longer = build(folder_config({"a": [], "b": []}, tokenizer="bpe", seq_len=32))
  assert longer.tokenizer == second.tokenizer and longer.fingerprint != second.fingerprint


def test_small_shards_give_the_same_rows(folder_config, monkeypatch, tmp_path):
  texts = make_texts(60)
  whole = build(folder_config({"a": texts}, seq_len=700))
  monkeypatch.setattr(text_corpus, "_SHARD_BYTES", 300)  # Less than a row: some get none.
  monkeypatch.setattr(packed_rows, "_BATCH_BYTES", 100)
  config = folder_config({"a": []}, seq_len=700, root=str(tmp_path / "other"))
  cut = build(config)
  assert cut.fingerprint == whole.fingerprint
  assert len(list(cut.corpora["a"].rows.glob("*train*"))) > 5
  for split in SPLITS:
    one, two = (storage.read(s.corpora["a"].rows, split) for s in (whole, cut))
    pairs = zip([r["tokens"] for r in one], [r["tokens"] for r in two], strict=True)
    assert all((a == b).all() for a, b in pairs)


def test_tokenizer_samples_corpora_evenly(folder_config):
  config = folder_config({"big": make_texts(400), "small": make_texts(400, 1, words=4)})
  paths = [text_corpus.build(name, config)[1] for name in ("big", "small")]
  texts = list(tokenizer_training.sample(paths, 8000))
  share = sum(len(t.encode()) for t in texts if t.startswith("0."))
  assert 3000 < share < 5000 and 8000 <= sum(len(t.encode()) for t in texts) < 8500
  assert texts == list(tokenizer_training.sample(paths, 8000))
  assert len(list(tokenizer_training.sample(paths, 10**9))) == sum(
    built.facts(path.parents[1]).splits["train"].counts["documents"] for path in paths
  )


def test_interrupted_build_is_not_taken_for_complete(folder_config, monkeypatch):
  config = folder_config({"a": make_texts(50)})
  finish = packed_rows.RowCutter.finish

  def interrupt(self):
    raise KeyboardInterrupt

  monkeypatch.setattr(packed_rows.RowCutter, "finish", interrupt)
  with pytest.raises(KeyboardInterrupt):
    build(config)
  monkeypatch.setattr(packed_rows.RowCutter, "finish", finish)
  assert build(config).corpora["a"].splits["train"].rows > 0


_KILLED = """
import os, signal, sys
from resjax.data.config import DataConfig, TokenizerConfig
from resjax.data.config import SPLITS
from resjax.data.dataset import build
def die(stage, done, total):
  if stage == sys.argv[3]:
    os.kill(os.getpid(), signal.SIGKILL)
corpora = {"a": {"source": sys.argv[1]}}
build(DataConfig(sys.argv[2], 16, corpora, TokenizerConfig("byte"), 0.1, 0.1), die)
"""


@pytest.mark.parametrize("stage", ["writing a validation", "packing a validation"])
@pytest.mark.slow
def test_killed_build_is_repeated(folder_config, tmp_path, stage):
  config = folder_config({"a": make_texts(50)})
  source = dict(config.corpora)["a"].source
  command = [sys.executable, "-c", _KILLED, source, config.root, stage]
  assert subprocess.run(command, cwd=ROOT).returncode == -signal.SIGKILL
  assert list((tmp_path / "root").rglob("incomplete.*"))
  summary = build(config)
  assert not list((tmp_path / "root").rglob("incomplete.*"))
  assert sorted(_all_decoded(summary, "a")) == sorted(make_texts(50))


def test_one_process_builds_at_a_time(folder_config, tmp_path):
  config = folder_config({"a": make_texts(50)})
  with storage.exclusive(tmp_path / "root"):
    other = threading.Thread(target=build, args=[config])
    other.start()
    time.sleep(0.3)
    assert os.listdir(tmp_path / "root") == [".lock"]
  other.join(30)
  assert not other.is_alive() and build(config).path.exists()


def test_built_data_can_be_read_where_locks_do_not_work(folder_config, monkeypatch):
  config = folder_config({"a": make_texts(50)})
  summary = build(config)

  def no_locks(file, operation):
    raise OSError("no locks here")

  monkeypatch.setattr(storage.fcntl, "flock", no_locks)
  assert build(config) == summary


def test_no_other_framework_is_imported(folder_config):
  config = folder_config({"a": make_texts(20)})
  code = """
import sys
from resjax.data.config import DataConfig, TokenizerConfig
from resjax.data import pipeline
from resjax.data.dataset import build
corpora = {"a": {"source": sys.argv[1]}}
config = DataConfig(sys.argv[2], 16, corpora, TokenizerConfig("bpe", 300), 0.1, 0.1)
dataset = build(config)
batch = next(pipeline.train_batches(config, dataset, batch_size=2, seed=0))
next(pipeline.evaluation_batches(dataset, "test", batch_size=2))
assert batch["inputs"].shape == (2, 16)
print([name for name in ("tensorflow", "torch", "transformers") if name in sys.modules])
"""
  command = [sys.executable, "-c", code, dict(config.corpora)["a"].source, config.root]
  result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
  assert result.stdout == "[]\n"  # TFDS has printed nothing.
