"""The benchmark of the scorer runs, and reports what it says."""

import pytest

from tests.helpers import benches


@pytest.mark.release
def test_a_small_decoder(tmp_path):
  flags = ["--layers=2", "--d_model=64", "--max_length=128", "--batches=1", "--repeats=2"]
  report = benches.report("score", tmp_path, *flags)
  speed = report["tokens_per_second"]
  assert report["tokens"]["text"] == report["tokens"]["plain"] == 512
  for side, ratio in report["ratio"].items():
    assert ratio == pytest.approx(speed[side] / speed["plain"]) and ratio > 0
  assert set(report["programs"]) <= {64, 96, 128}
