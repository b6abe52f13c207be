"""The benchmark of an analysis runs, and reports what it says."""

import numpy as np
import pytest

from launch.bench import analyze
from tests.helpers import benches, gguf_files


@pytest.mark.release
def test_a_small_decoder(tmp_path):
  flags = ["--layers=2", "--d_model=64", "--vocab_size=5000", "--seq_len=64", "--tokens=512"]
  report = benches.report("analyze", tmp_path, *flags, "--repeats=1")
  assert report["tokens"] == 512
  seconds = report["seconds"]
  assert report["ratio"] == pytest.approx(seconds["analysis"] / seconds["products"])
  assert report["core_ratio"] > 0 and report["peak_bytes"] > 10**7


@pytest.mark.parametrize(("length", "size"), [(7, 3), (6, 3), (2, 3)])
def test_every_row_is_in_one_part(length, size):
  rows = np.arange(2.0 * length).reshape(length, 2)
  found = analyze._over(lambda total, part: total + part.sum(0), np.zeros(2), rows, size)
  np.testing.assert_array_equal(found, rows.sum(0))


@pytest.mark.release
def test_a_pretrained_model_with_rows_that_fill_no_chunk(tmp_path):
  gguf_files.write(tmp_path / "tiny.gguf", "llama")
  flags = [f"--hf={tmp_path / 'tiny.gguf'}", "--rows=3", "--seq_len=40", "--tokens=240"]
  report = benches.report("analyze", tmp_path, *flags, "--repeats=1")
  assert report["tokens"] == 240 and report["ratio"] > 0
