"""The command that cuts residual paths, as its users run it."""

import sys

import pytest

from resjax.study.analysis.sensitivity import Sensitivity
from tests.helpers import forks, pretrained
from tests.helpers.runs import start, write_text


def run(*arguments) -> tuple[int, str]:
  process = start([sys.executable, "-m", "resjax", "intervene", *map(str, arguments)])
  output, _ = process.communicate(timeout=240)
  return process.returncode, output


def test_a_hugging_face_folder(tmp_path):
  folder, text, out = (
    pretrained.folder(tmp_path),
    write_text(tmp_path) / "text",
    tmp_path / "c.json",
  )
  options = ["--alphas=0.5,1", "--layers=0,-1", "--sites=mlp", "--seq_len=16", "--tokens=200"]
  code, output = run(f"--hf={folder}", f"--data={text}", *options, f"--out={out}")
  assert code == 0, output
  found = Sensitivity.from_json(out.read_text())
  assert (found.model, found.residual, found.corpus) == ("llama", "standard", str(text))
  assert (found.layers, found.alphas, found.sites) == ((0, 2), (0.5, 1.0), ("mlp",))
  assert (found.num_tokens, found.num_rows) == (200, 13)
  assert (found.loss[:, 1] == found.baseline_loss).all()
  assert found.alignments[1][0].positions == found.baseline_alignment.positions
  lines = output.splitlines()
  above = found.loss[1] - found.baseline_loss
  for values, errors in ((above, found.errors[1]), (found.slopes[1], found.slope_errors[1])):
    pairs = zip(values, errors, strict=True)
    shown = [text for value, error in pairs for text in (f"{value:+.4f}", f"±{error:.4f}")]
    assert ["2", *shown] in [line.split() for line in lines]
  assert "on 200 tokens of" in output and "after which layer the next token" in output
  assert lines[-1] == str(out)


@pytest.fixture(scope="module")
def forked():
  return forks.command("intervene")


def check_mistake(forked, tmp_path, flags, words):
  code, output = forked(f"--out={tmp_path / 'out.json'}", *flags)
  assert code == 1 and output.startswith("error: ") and output.count("\n") == 1, output
  assert words in output


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    ([], "no model; give the folder of a run, for example --checkpoint=runs/tiny, or --hf"),
    (["--hf=nowhere"], "nowhere has no config.json"),
  ],
)
def test_mistakes(forked, tmp_path, flags, words):
  check_mistake(forked, tmp_path, flags, words)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--checkpoint=nowhere"], "--checkpoint='nowhere' has no checkpoint"),
    (["--hf=a", "--checkpoint=b"], "several models; give one --checkpoint or one --hf"),
    (["--hf=a", "--alphas=0,b"], "--alphas=0,b must be numbers"),
    (["--hf=a", "--out="], "no file for the figures"),
    (["--hf=a", "--out=/dev/null/x.json"], "cannot write to /dev/null (File exists); move"),
  ],
)
def test_other_mistakes(forked, tmp_path, flags, words):
  check_mistake(forked, tmp_path, flags, words)
