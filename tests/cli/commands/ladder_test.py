"""The ladder command on runs of a known law, and a ladder of four sizes that is really trained."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import ladder
from resjax.base.records.metrics_log import METRICS_FILE
from resjax.models.model_def import ModelDef
from resjax.train.runs import workdir
from tests.data.conftest import make_texts, write_folder
from tests.helpers import forks, ladders, xla

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def forked():
  return forks.command("ladder", COLUMNS=80)


def values(folder):
  found = json.loads((folder / "ladder.json").read_text())
  return found, {
    arm: [one["value"] for one in own["multipliers"]]
    for arm, own in found["arms"].items()
    if "multipliers" in own
  }


def test_an_arm_of_a_known_loss_has_its_multiplier(tmp_path, forked):
  folder = ladders.write(tmp_path / "a", speeds={"gate": 8e3}, seeds=(0, 1))
  code, output = forked(f"--workdir={folder}")
  assert code == 0, output
  lines = [line for line in output.splitlines() if str(folder) not in line]
  assert len(lines) > 16 and max(map(len, lines)) <= 80, output
  found, multipliers = values(folder)
  law = found["law"]
  assert (law["floor"], law["exponent"]) == pytest.approx(
    (ladders.FLOOR, ladders.EXPONENT), rel=1e-3
  )
  np.testing.assert_allclose(multipliers["gate"], 1.25 * 0.8, rtol=1e-3)
  np.testing.assert_allclose(multipliers["block_attn_res"], 0.9, rtol=1e-3)
  assert found["rungs"] == ["l2d16", "l3d24", "l4d32", "l6d48"]
  assert "block_attn_res: no saving is claimed, since S is 0.90 on rung" in output
  assert (folder / "ladder.png").stat().st_size > 10_000

  code, output = forked(f"--workdir={folder}", "--nospeed")
  assert code == 0 and "gate saves 20.0%" in output
  assert found["arms"]["gate"]["tokens_per_second"] == [8e3] * 4
  np.testing.assert_allclose(values(folder)[1]["gate"], 1.25, rtol=1e-3)


def test_an_arm_that_is_not_done_is_left_out(tmp_path, forked):
  folder = ladders.write(tmp_path / "a")
  metrics = folder / "l4d32-gate" / METRICS_FILE
  lines = metrics.read_text().splitlines()
  lines[-1] = lines[-1].replace(str(json.loads(lines[-1])["validation/loss"]), "null")
  metrics.write_text("\n".join(lines) + "\n")
  code, output = forked(f"--workdir={folder}")
  assert code == 0 and "gate is left out: l4d32 is not done" in output
  assert "l4d32-gate is not done\n" in output
  assert set(values(folder)[1]) == {"block_attn_res"}


def test_missing_seeds_are_named(tmp_path, forked):
  folder = ladders.write(tmp_path / "a", seeds=(0, 1))
  shutil.rmtree(folder / "l3d24-gate" / "seed_1")
  code, output = forked(f"--workdir={folder}")
  assert code == 0 and "l3d24-gate is not done: seed_1\n" in output
  assert "gate is left out: l3d24 is not done" in output
  assert set(values(folder)[1]) == {"block_attn_res"}
  shutil.rmtree(folder / "l6d48-standard" / "seed_0")
  (folder / "l6d48-standard" / "seed_1" / workdir.RECORD).unlink()
  code, output = forked(f"--workdir={folder}")
  assert code == 1 and "l6d48-standard is not done: seed_0, seed_1\n" in output
  assert "--reference=standard has 3 finished rungs" in output


@pytest.mark.slow
def test_mistakes_are_one_line(tmp_path, forked):
  folder = ladders.write(tmp_path / "a")
  for flags, words in (
    ([], "no sweep; give the folder of one"),
    ([f"--workdir={tmp_path / 'b'}"], "there is no such folder; run resjax sweep first"),
    (
      [f"--workdir={folder}", "--reference=atn"],
      "--reference=atn has 0 finished rungs, folders RUNG-atn, and needs 4; arms with finished "
      "runs: block_attn_res, gate, standard",
    ),
    (
      [f"--workdir={folder}", "--floor=3"],
      "floor=3 must be at least 0 and below the smallest loss",
    ),
    ([f"--workdir={folder}", "--currency=hours"], "hours"),
  ):
    code, output = forked(*flags)
    assert code == 1 and words in output, output
    assert output.startswith("error: ") and output.count("\n") == 1, output
  other = folder / "l2d16-gate" / workdir.RECORD
  other.write_text(other.read_text().replace('"aa"', '"bb"'))
  code, output = forked(f"--workdir={folder}")
  assert code == 1 and "its runs have different data: aa, bb" in output


@pytest.mark.parametrize("size", ["toy", pytest.param("full", marks=pytest.mark.release)])
@pytest.mark.slow
def test_rungs_have_20_tokens_per_parameter(size):
  found = dict(ladders.runs(size))
  assert len(found) == 4 * len(ladder.ARMS)
  sizes = [(r.decoder.num_layers, r.decoder.d_model) for r in found.values()]
  if size == "full":
    assert sorted(set(sizes)) == [(4, 256), (6, 384), (8, 512), (12, 768)]
  for name, run in found.items():
    assert run.decoder.mup.base_width == ladder.SIZES[size]["d_model"]
    assert run.decoder.head_dim == (64 if size == "full" else 8)
    if name.endswith("-standard"):
      leaves = jax.tree_util.tree_leaves_with_path(ModelDef(run.decoder, run.layout).abstract)
      body = sum(leaf.size for path, leaf in leaves if "embed" not in str(path))
      batch = run.train.batch_size * run.data.seq_len
      assert run.train.steps == -(-20 * body // batch)


@pytest.mark.release
def test_a_ladder_of_four_sizes_is_trained_and_read(tmp_path):
  """Two arms of a very small ladder, from the first batch to the multipliers."""
  source = write_folder(tmp_path / "text", make_texts(400))
  settings = {
    "workdir": tmp_path / "out", "data.root": tmp_path / "data",
    "data.corpora.stdlib.source": source, "data.seq_len": 32, "model.d_model": 6,
    "model.mlp_dim": 18, "train.batch_size": 32, "train.eval_rows": 64, "model.mup.base_width": 6,
  }  # fmt: skip
  options = {"cwd": ROOT, "capture_output": True, "text": True, "env": os.environ | {
    "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla.QUICK, "COLUMNS": "80", "PYTHONPATH": str(ROOT)
  }}  # fmt: skip
  flags = [f"--config.{key}={value}" for key, value in settings.items()]
  rungs = ("l2d4", "l3d6", "l4d8", "l6d12")
  only = ",".join(f"{rung}-{arm}" for rung in rungs for arm in ladder.ARMS[:2])
  flags = ["--config=configs/ladder.py:toy", *flags, f"--only={only}"]
  swept = subprocess.run([sys.executable, "-m", "resjax", "sweep", *flags], **options)
  assert swept.returncode == 0, swept.stderr[-2000:]
  command = [sys.executable, "-m", "resjax", "ladder", f"--workdir={tmp_path / 'out'}"]
  read = subprocess.run([*command, "--floor=0"], **options)
  assert read.returncode == 0, read.stderr
  found, multipliers = values(tmp_path / "out")
  assert len(found["rungs"]) == 4 and set(multipliers) == {"gate"}
  losses = found["arms"]["standard"]["losses"]
  assert losses == sorted(losses, reverse=True)
