"""resjax.cli.commands.export writes what a run learned, and answers mistakes with one line."""

import json
import shutil
import sys

import numpy as np
import pytest

from resjax.interop import huggingface
from resjax.train import experiment
from resjax.train.runs import restore
from tests.helpers import runs
from tests.interop.huggingface.golden_test import logits

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "resjax", "export"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """The workdir of a run of two steps."""
  root = runs.write_text(tmp_path_factory.mktemp("run"))
  settings = {"train__steps": 2, "optim__warmup_steps": 1, "train__eval_every": 0}
  settings["model__residual__name"] = "standard"
  runs.finish(runs.small_command(root, root / "work", **settings))
  return root / "work"


def test_a_run_becomes_a_folder(trained, tmp_path):
  out = tmp_path / "deep" / "out"
  said = runs.finish([*COMMAND, f"--checkpoint={trained}", f"--out={out}", "--shard_gb=0.00005"])
  assert said == f"{out}: LlamaForCausalLM, float32\n"
  assert (out / "model.safetensors.index.json").exists()
  saved = restore.find(str(trained), "--checkpoint")
  model = restore.restore_model(experiment.load(str(trained)), saved)
  read = huggingface.tokenizer(out)
  tokens = model.tokenizer.encode_batch(["depth width layer"])[0][None]
  np.testing.assert_array_equal(read.encode_batch(["depth width layer"])[0][None], tokens)
  want = logits(model.decoder, tokens)
  np.testing.assert_array_equal(logits(huggingface.load(out), tokens), want)
  assert json.loads((out / "config.json").read_text())["eos_token_id"] == model.tokenizer.eot_id


def test_a_run_becomes_a_folder_with_code(trained, tmp_path):
  out = tmp_path / "out"
  more = ["--with_code", "--for=vllm", "--dtype=bfloat16"]
  said = runs.finish([*COMMAND, f"--checkpoint={trained}", f"--out={out}", *more])
  assert said == f"{out}: ResjaxStandardForCausalLM, bfloat16\n"
  assert "| training | 2 of 2 steps of 256 tokens |" in (out / "README.md").read_text()
  assert huggingface.read_config(out).residual.name == "standard"


@pytest.fixture(scope="module")
def damaged(trained, tmp_path_factory):
  """A copy of the workdir whose parameters cannot be read."""
  copy = shutil.copytree(trained, tmp_path_factory.mktemp("damaged") / "work")
  shutil.rmtree(copy / "checkpoints" / "2" / "params" / "d")
  return copy


@pytest.mark.parametrize(
  "flags, words",
  [
    ([], "give both, for example --checkpoint=runs/tiny --out=exported/tiny"),
    (["--checkpoint={damaged}", "--out={damaged}"], "not an empty folder; set --out to another"),
    (["--checkpoint={damaged}", "--out=/dev/null/x"], "cannot write to /dev/null"),
    (["--checkpoint={damaged}", "--out={damaged}/new"], "damaged"),
    (["--checkpoint=a", "--out=b", "--shard_gb=nan"], "--shard_gb=nan must be a finite number"),
    (["--checkpoint=a", "--out=b", "--shard_gb=inf"], "--shard_gb=inf must be a finite number"),
  ],
)
def test_mistakes(damaged, flags, words):
  """Those of --out are found before parameters are read."""
  process = runs.start([*COMMAND, *(flag.format(damaged=damaged) for flag in flags)])
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 1
  assert output.startswith("error: ") and output.count("\n") == 1, output
  assert words in output
  assert not (damaged / "new").exists()


def test_several_processes_are_refused(tmp_path):
  arguments = [*COMMAND, f"--checkpoint={tmp_path}", f"--out={tmp_path / 'out'}"]
  for code, output in runs.ends(runs.start_together(2, arguments), timeout=300):
    assert code == 1 and output.count("\n") == 1, output
    assert output.startswith("error: resjax export runs in one process"), output
