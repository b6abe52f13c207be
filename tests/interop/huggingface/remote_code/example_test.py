"""What users do with a run and its export: the example in docs/examples, and the model card."""

import os
import subprocess
import sys

import pytest

from resjax.data.tokenizer import ByteTokenizer
from resjax.interop import huggingface
from resjax.train import experiment
from resjax.train.runs import restore
from tests.helpers import decoders, trained
from tests.helpers.runs import write_text

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_the_example_compares_a_run_with_its_export(tmp_path, capsys):
  import compare_with_transformers  # it imports torch

  root = write_text(tmp_path)
  config = trained.settings(root, tmp_path / "run", "gate")
  config.model.norm_eps = 1e-6
  trained.run(config)
  run = experiment.load(str(tmp_path / "run"))
  saved = restore.find(str(tmp_path / "run"), "RUN")
  model = restore.restore_model(run, saved)
  huggingface.export(model.decoder, tmp_path / "exported", tokenizer=model.tokenizer)
  capsys.readouterr()
  compare_with_transformers.main(str(tmp_path / "run"), str(tmp_path / "exported"))
  logits, greedy = capsys.readouterr().out.splitlines()[-2:]
  assert float(logits.split()[3]) <= 1e-4
  assert greedy == "greedy tokens: 32 of 32 equal"


@pytest.mark.slow
def test_the_code_of_the_card_runs_without_a_question(tmp_path):
  words = ByteTokenizer()
  for name in ("standard", "gate"):
    decoder = decoders.drawn(decoders.config("llama", name, vocab_size=words.vocab_size))
    huggingface.export(decoder, tmp_path / name, tokenizer=words)
    code = (tmp_path / name / "README.md").read_text().split("```")[1].removeprefix("python\n")
    code = code.replace("FOLDER", name) + "print(tokenizer.decode(tokenizer('ab').input_ids))"
    env = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
      [sys.executable, "-c", code], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL,
      capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ab"
    assert "trust_remote_code" not in done.stderr
