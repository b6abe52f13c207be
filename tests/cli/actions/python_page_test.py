"""docs/python.md: all of its code runs, on a smaller model and less text."""

import shutil

import pytest

from resjax.cli import shipped
from tests.helpers import doc_commands
from tests.helpers.fakes import ROOT
from tests.helpers.runs import write_text

SMALL = """
from configs import tiny


def get_config():
  c = tiny.get_config()
  c.model.update(num_layers=2, d_model=32, mlp_dim=64)
  c.data.update(seq_len=128, validation_fraction=0.2)
  c.data.corpora.stdlib.source = "text"
  c.data.tokenizer.update(vocab_size=300)
  c.optim.warmup_steps = 1
  c.train.update(eval_rows=16, alignment_every=0, sample_tokens=8)
  return c
"""


@pytest.mark.release
def test_all_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
  write_text(tmp_path)
  shutil.copy(ROOT / "LICENSE", tmp_path)
  (tmp_path / "tiny.py").write_text(SMALL)
  monkeypatch.setattr(shipped, "config_file", lambda name: tmp_path / f"{name}.py")
  monkeypatch.chdir(tmp_path)
  blocks = doc_commands.python(ROOT / "docs" / "python.md")
  assert len(blocks) > 8
  names = {}
  for block in blocks:
    exec(block, names)
  said = capsys.readouterr().out
  assert "config.train.stepz is not a setting; did you mean 'steps'?" in said
  assert "differences from" in said and "report.html" in said
  assert names["longer"].metrics["step"][-1] == 25
  assert names["earlier"].generate("import", num_tokens=2)
