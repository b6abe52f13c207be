"""docs/examples/compare_with_transformers.py on a run and its export."""

import pytest

from resjax import experiment
from resjax.interop import huggingface
from resjax.runs import restore
from tests.helpers import trained
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
  model, params, words = restore.restore_model(run, saved)
  huggingface.export(model.bind(params), tmp_path / "exported", tokenizer=words)
  capsys.readouterr()
  compare_with_transformers.main(str(tmp_path / "run"), str(tmp_path / "exported"))
  logits, greedy = capsys.readouterr().out.splitlines()[-2:]
  assert float(logits.split()[3]) <= 1e-4
  assert greedy == "greedy tokens: 32 of 32 equal"
