"""Many kills and a long run, in short; the commands behind them do more."""

import pytest

from tests import kills, soak


@pytest.mark.slow
def test_kills_in_every_phase(tmp_path):
  killed = kills.kills(tmp_path, count=10)
  assert set(killed) == {"data", "compile", "train", "save", "evaluation", "report"}


@pytest.mark.slow
def test_nothing_grows(tmp_path):
  found = soak.soak(tmp_path, steps=1600, saves=160)
  assert len(found) >= 6
  assert soak.problems(found) == []
