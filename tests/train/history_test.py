"""A run whose settings change over its life: what its record says, and what a start prints."""

import hashlib
import json
import sys

import pytest

from resjax.train.recorder import Recorder
from resjax.train.runs import workdir
from tests.helpers import trained
from tests.helpers.runs import write_text


def settings(root, steps, rate, **optim):
  c = trained.settings(root, root / "run", "standard", steps=steps, sample_tokens=4)
  c.mesh.update(data=-1, fsdp=1)
  c.model.update(num_layers=1, d_model=16, mlp_dim=16)
  c.checkpoint.every = 2
  c.optim.update(learning_rate=rate, **optim)
  return c


def told(root):
  """The parts in the record of the run: first step, and learning rate where it is told."""
  record = json.loads((root / "run" / "run.json").read_text())
  assert (
    record["config"]["optim"]["learning_rate"]
    == workdir.read(root / "run").parts[-1].settings["optim.learning_rate"]
  )
  return [(p["first_step"], p["settings"].get("optim.learning_rate")) for p in record["history"]]


def files(root):
  """Content, time and inode of every file of the run."""
  paths = sorted(path for path in (root / "run").rglob("*") if path.is_file())
  stats = [(path.stat().st_mtime_ns, path.stat().st_ino) for path in paths]
  digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
  return dict(zip(map(str, paths), zip(digests, stats, strict=True), strict=True))


def dying_at(monkeypatch, step):
  """Ends a run after the metrics of a step, as a kill does: nothing more is saved."""
  record = Recorder._log

  def log(self, at, values):
    record(self, at, values)
    if at == step:
      raise ValueError("killed")

  monkeypatch.setattr(Recorder, "_log", log)


@pytest.mark.slow
def test_the_record_of_a_run_with_three_settings(tmp_path, monkeypatch):
  root = write_text(tmp_path)
  # Not even a first step: the record claims none, and another run may begin in the folder.
  with monkeypatch.context() as patch:
    patch.setattr("resjax.train.trainer.Trainer._step", lambda self, step: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      trained.run(settings(root, 2, 7e-3))
  assert json.loads((root / "run" / "run.json").read_text())["history"] == []
  assert workdir.begun(root / "run") is None

  trained.run(settings(root, 2, 1e-2), draws=True)
  assert told(root) == [(1, None)]

  # A finished run that is started again, with other settings too, stays as it is.
  before = files(root)
  other = settings(root, 2, 5e-2, final_fraction=0.5)
  other.train.alignment_every = 1
  printed = trained.run(other, draws=True)
  assert files(root) == before
  assert "has no effect, and is not recorded: config." in printed
  assert "config.optim.final_fraction was 0.1" in printed

  # It goes on with another rate, and dies behind a checkpoint.
  with monkeypatch.context() as patch, pytest.raises(ValueError, match="killed"):
    dying_at(patch, 5)
    trained.run(settings(root, 6, 2e-2))
  assert told(root) == [(1, 1e-2), (3, 2e-2)]

  # One that dies before its first step claims none; step 5 of the second one is trained again.
  with monkeypatch.context() as patch:
    patch.setattr("resjax.train.trainer.Trainer._step", lambda self, step: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      trained.run(settings(root, 6, 9e-2))
  assert told(root) == [(1, 1e-2), (3, 2e-2)]
  printed = trained.run(settings(root, 6, 3e-2))
  assert told(root) == [(1, 1e-2), (3, 2e-2), (5, 3e-2)]
  assert (
    "resuming after step 4 of 6\nfrom step 5 on: config.optim.learning_rate was 0.02" in printed
  )
  assert "learning rate: " in printed


def test_a_record_of_a_version_without_history(tmp_path):
  root = write_text(tmp_path)
  trained.run(settings(root, 2, 1e-2))
  path = root / "run" / "run.json"
  record = json.loads(path.read_text())
  del record["history"], record["environment"]["variables"], record["config"]["init_seed"]
  del record["identity"]["config.init_seed"]
  path.write_text(json.dumps(record))
  trained.run(settings(root, 4, 1e-3))
  assert told(root) == [(1, 1e-2), (3, 1e-3)]


def names(folder):
  """Everything under a folder but what a build notes of text that it has read."""
  return sorted(str(path) for path in folder.rglob("*") if "digests" not in path.parts)


def test_what_contradicts_a_run_is_refused_before_data_are_built(tmp_path, monkeypatch):
  root = write_text(tmp_path)
  trained.run(settings(root, 2, 1e-2))
  before = names(root / "data")

  def refused(words, change):
    c = settings(root, 4, 1e-2)
    change(c)
    with pytest.raises(ValueError, match=words):
      trained.run(c)
    assert names(root / "data") == before

  refused("seq_len was 32 and is 16", lambda c: c.data.update(seq_len=16))
  refused("num_layers was 1 and is 2", lambda c: c.model.update(num_layers=2))
  refused("train.batch_size was 8 and is 16", lambda c: c.train.update(batch_size=16))
  refused("validation_fraction was", lambda c: c.data.update(validation_fraction=0.1))

  # What a new run needs is looked at first, too.
  def new_run(**train):
    def change(c):
      c.workdir, c.data.seq_len, c.model.d_model = str(root / "new"), 16, 32
      c.train.update(**train)

    return change

  monkeypatch.setitem(sys.modules, "wandb", None)
  refused("needs wandb", new_run(wandb_project="depth"))
  refused("the parameters do not fit", new_run(init_from=str(root / "run")))

  # Other text under the same path: it is read, and nothing is built of it.
  (root / "text" / "0.txt").write_text("other words")
  refused("1 of 40 documents changed, the first is 0.txt", lambda c: None)
  (root / "text" / "0.txt").unlink()
  refused("it had 40 documents and has 39", lambda c: None)


def test_a_second_corpus_and_a_tokenizer_are_looked_at_before_text_is_built(tmp_path):
  root = write_text(tmp_path)
  c = settings(root, 2, 1e-2)
  c.data.corpora = {**c.data.corpora.to_dict(), "more": {"source": str(root / "gone")}}
  with pytest.raises(ValueError, match=r"corpora\.more\.source"):
    trained.run(c)
  c = settings(root, 2, 1e-2)
  c.data.tokenizer.update(name="pretrained", folder=str(root / "gone"), vocab_size=9)
  with pytest.raises(ValueError, match="gone"):
    trained.run(c)
  assert not (root / "data" / "corpora").exists()
