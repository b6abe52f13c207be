"""The benchmark of an analysis runs, and reports what it says."""

import pytest

from tests.helpers import benches


@pytest.mark.release
def test_a_small_decoder(tmp_path):
  flags = ["--layers=2", "--d_model=64", "--vocab_size=5000", "--seq_len=64", "--tokens=512"]
  report = benches.report("analyze", tmp_path, *flags, "--repeats=1")
  assert report["tokens"] == 512
  seconds = report["seconds"]
  assert report["ratio"] == pytest.approx(seconds["analysis"] / seconds["products"])
  assert report["core_ratio"] > 0 and report["peak_bytes"] > 10**7
