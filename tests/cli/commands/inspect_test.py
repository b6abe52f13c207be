"""The command that reads single states, as its users run it."""

import json
import sys

import numpy as np
import pytest

from resjax.cli.actions import loading
from resjax.study.analysis import tuned_lens
from tests.helpers import forks, pretrained
from tests.helpers.runs import start, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return pretrained.folder(tmp_path_factory.mktemp("model"))


def run(*arguments) -> tuple[int, str]:
  process = start([sys.executable, "-m", "resjax", "inspect", *map(str, arguments)])
  output, _ = process.communicate(timeout=240)
  return process.returncode, output


def results(out, what):
  assert (out / f"{what}.png").read_bytes().startswith(b"\x89PNG")
  return json.loads((out / f"{what}_results.json").read_text())


@pytest.mark.slow
def test_parts_of_a_logit(folder, tmp_path):
  code, output = run("--what=attribution", f"--hf={folder}", "--text=depth", f"--out={tmp_path}")
  assert code == 0, output
  found = results(tmp_path, "attribution")
  np.testing.assert_allclose(sum(found["writes"]) + found["bias"], found["logit"], atol=1e-4)
  assert f"{found['logit']:.4f}" in output and np.shape(found["heads"])[0] == 3
  assert output.splitlines()[-1] == str(tmp_path / "attribution.png")
  assert all(len(line) <= 80 for line in output.splitlines() if line.endswith(" "))


@pytest.mark.slow
def test_a_lens_of_its_own(folder, tmp_path):
  text = write_text(tmp_path) / "text"
  options = ["--seq_len=16", "--tokens=600", "--steps=10", f"--data={text}"]
  code, output = run("--what=lens", f"--hf={folder}", *options, f"--out={tmp_path / 'lens'}")
  assert code == 0, output
  found = results(tmp_path / "lens", "lens")
  assert (np.array(found["gain"]) >= -0.01).all() and np.shape(found["kl_errors"]) == (2, 4)
  model = loading.from_huggingface(str(folder))
  lens = tuned_lens.load(tmp_path / "lens", model.fingerprint())
  assert lens.weights.shape == (4, model.decoder.config.d_model, model.decoder.config.d_model)


@pytest.fixture(scope="module")
def forked():
  return forks.command("inspect")


@pytest.mark.slow
def test_patching(forked, folder, tmp_path):
  for word in ("depth", "layer", "gate", "query", "norm"):
    prompts = ["--text=width", f"--corrupted={word}"]
    code, output = forked("--what=patching", f"--hf={folder}", *prompts, f"--out={tmp_path}")
    if code == 0 or "both prompts are answered with token" not in output:
      break  # a small model may answer both alike
  assert code == 0, output
  found = results(tmp_path, "patching")
  np.testing.assert_allclose(found["patched_all"], found["clean"], atol=1e-4)
  assert np.shape(found["patched"]) == (4, len(found["prompt"]))
  lines = [line for line in output.splitlines() if line.startswith((" embedding", " layer"))]
  assert len(lines) == 4 and all("1.000" in line for line in lines)


@pytest.mark.slow
def test_depth_probes(forked, folder, tmp_path):
  text = write_text(tmp_path) / "text"
  options = ["--seq_len=16", "--tokens=100", "--vectors=2", f"--data={text}", "--pairs=all"]
  code, output = forked("--what=depth", f"--hf={folder}", *options, f"--out={tmp_path}")
  assert code == 0, output
  found = results(tmp_path, "depth")
  assert np.shape(found["angular"]["mean"]) == (4, 4) and len(found["pairs"]) == 3
  assert found["effective_rank"] is None and len(found["jacobian"]["half"]) == 3
  line = next(line for line in output.splitlines() if line.split()[:1] == ["0"])
  means = (
    found["angular"]["mean"][0][1],
    found["causal_mean"]["mean"][0],
    found["skipped"]["mean"][0],
  )
  assert all(f"{value:.4f}" in line for value in means)
  assert "no effective rank: standard has no mixing matrices" in output.replace("\n", " ")
  assert all(len(line) <= 80 for line in output.splitlines() if line.endswith(" "))


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    ([], "nothing to read; give --what=lens, attribution, patching or depth"),
    (["--what=lens"], "no model; give the folder of a run"),
    (["--what=lens", "--hf=a", "--checkpoint=b"], "several models; give one --checkpoint"),
    (["--what=heads"], "--what=heads"),
  ],
)
def test_mistakes(forked, flags, words):
  code, output = forked(*flags)
  assert code == 1 and output.startswith("error: ") and output.count("\n") == 1, output
  assert words in output


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--what=attribution"], 'no prompt; give one, for example --text="The capital of France is"'),
    (["--what=depth", "--probes=angle"], "probes='angle' are not known; give some of angular"),
    (["--what=patching", "--text=a"], "no prompt; give one, for example --corrupted="),
    (["--what=patching", "--text=a", "--corrupted=a"], "--corrupted has the tokens of --text"),
    (["--what=attribution", "--text=a", "--answer=depth"], "'depth' is 3 tokens of llama"),
    (["--what=attribution", "--text=a", *["--answer=a"] * 3], "3 times --answer; give at most 2"),
    (
      ["--what=patching", "--text=a", "--corrupted=depth width b c"],
      "give prompts of equally many",
    ),
  ],
)
@pytest.mark.slow
def test_prompts_and_answers_that_cannot_be(forked, folder, tmp_path, flags, words):
  code, output = forked(f"--hf={folder}", f"--out={tmp_path}", *flags)
  assert code == 1 and output.startswith("error: ") and output.count("\n") == 1, output
  assert words in output
