"""What the processes of a run do about data that another process has built."""

import shutil

import jax
import pytest
from rich.console import Console

from resjax.base import processes
from resjax.data import built, dataset
from resjax.data.config import DataConfig, TokenizerConfig
from resjax.train import common_start


@pytest.fixture
def second(tmp_path, monkeypatch):
  """Builds data as process 0 does; returns their config and summary to process 1, and its console.

  The console of process 1 is quiet, and it hears from process 0 what that has built and compared.
  """
  (tmp_path / "text").mkdir()
  for number in range(40):
    (tmp_path / "text" / f"{number}.txt").write_text(f"document {number} " * (number + 1))
  corpora = {"a": {"source": str(tmp_path / "text")}}
  config = DataConfig(str(tmp_path / "root"), 16, corpora, TokenizerConfig("byte"), 0.1, 0.1)
  summary = dataset.build(config)
  heard = [summary.fingerprint, dataset.stamps(summary)]
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  monkeypatch.setattr(processes, "first", lambda name, make: heard)
  monkeypatch.setattr(built, "_SMALL", 0)
  return config, summary, Console(quiet=True)


def flip_a_row(root):
  shard = next(root.glob("rows/a-*/packed_rows/*/*train*"))
  content = bytearray(shard.read_bytes())
  content[100] ^= 1
  shard.write_bytes(content)


def test_files_that_process_0_has_compared_are_not_read_again(second, tmp_path):
  config, summary, console = second
  flip_a_row(tmp_path / "root")
  assert common_start.build_data(config, console) == summary


@pytest.mark.parametrize("harm", [flip_a_row, shutil.rmtree])
def test_a_host_with_a_disk_of_its_own_compares_and_builds_for_itself(second, tmp_path, harm):
  config, summary, console = second
  (tmp_path / "root").rename(tmp_path / "of process 0")
  shutil.copytree(tmp_path / "of process 0", tmp_path / "root")
  harm(tmp_path / "root")
  assert common_start.build_data(config, console) == summary
  assert dataset.find(config.root, summary.fingerprint) == summary
