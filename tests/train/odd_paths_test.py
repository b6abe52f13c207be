"""A run under a path with odd characters is trained, resumed, read, reported and exported."""

import numpy as np
import pytest

from resjax.cli.actions import loading
from resjax.interop import huggingface
from resjax.train import run_page
from resjax.train.checkpoint.reader import saved_steps
from tests.helpers import trained
from tests.helpers.runs import write_text

# What a glob, a shell, an address or a printed line takes for something else.
NAMES = {
  "patterns": "a[b]c/[!x]/[0-9]/star*/a**b/what?/{x,y}",
  "words": "-dash/sp ace/~tilde~/q'u\"o/$HOME;x|y/new\nline",
  "characters": "#h%41/é世界/dots.../" + "x" * 200,
  "links": "link/../run",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  root = write_text(tmp_path_factory.mktemp("odd[1]"))
  (root / "far" / "away").mkdir(parents=True)
  (root / "link").symlink_to("far/away")
  return root


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_odd_paths(root, name):
  workdir = root / name
  trained.run(trained.settings(root, workdir, "standard", steps=2))
  printed = trained.run(trained.settings(root, workdir, "standard", steps=3))
  assert "resuming after step 2 of 3" in printed and saved_steps(workdir / "checkpoints") == [2, 3]
  model = loading.from_workdir(str(workdir))
  huggingface.export(model.decoder, workdir / "exported[1]", tokenizer=model.tokenizer)
  again = huggingface.load(workdir / "exported[1]")
  assert "Run " in run_page.page(workdir, {})
  tokens = np.arange(32)[None]
  np.testing.assert_allclose(again(tokens), model.decoder(tokens), rtol=1e-5, atol=1e-5)
