"""A run goes on with the same text, and says which document of other text changed."""

import json
import os
import re
import shutil
from functools import partial

import pytest

from configs import tiny
from resjax.data import dataset, sources, text_digest
from resjax.train import experiment
from resjax.train.runs import run_text, workdir
from tests.data.conftest import make_texts, write_folder

TEXTS = make_texts(30)


def run_of(root, text, **data):
  """The run of a config whose workdir is root/run, with the text in a folder."""
  config = tiny.get_config()
  config.workdir = str(root / "run")
  settings = {"root": str(root / "data"), "seq_len": 16} | data
  for key, value in settings.items():
    config.data[key] = value
  config.data.corpora.stdlib.source = str(text)
  config.data.tokenizer.name = "byte"
  return experiment.build(config)


def start(run, folder):
  """Does what a start does before it trains: data, check, record."""
  workdir.check(folder, run)
  built = dataset.build(run.data, check=partial(workdir.check_data, folder, run))
  workdir.check_rows(folder, run, built)
  workdir.write(folder, run, built, {})
  return built


@pytest.fixture
def started(tmp_path):
  """The fingerprint of the data of a run in tmp_path/run."""
  folder = workdir.create(str(tmp_path / "run"))
  run = run_of(tmp_path, write_folder(tmp_path / "text", TEXTS))
  return start(run, folder).fingerprint


def refusal(run, folder):
  with pytest.raises(ValueError, match=re.escape(f"{folder} holds another run")) as caught:
    start(run, folder)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def test_another_path_of_the_same_text_goes_on(tmp_path, started):
  shutil.copytree(tmp_path / "text", tmp_path / "clone")
  shutil.rmtree(tmp_path / "text")
  shutil.rmtree(tmp_path / "data")  # Another machine has other disks.
  assert start(run_of(tmp_path, tmp_path / "clone"), tmp_path / "run").fingerprint == started


def test_a_changed_character_is_named_and_both_remedies_work(tmp_path, started):
  path = tmp_path / "text" / "0007.txt"
  path.write_text(TEXTS[7][:-1] + "!", newline="")
  run = run_of(tmp_path, tmp_path / "text")
  message = refusal(run, tmp_path / "run")
  assert "1 of 30 documents changed, the first is 0007.txt#0" in message
  assert f"set config.data.built={started} to go on with the data of its start" in message
  assert f"which config.data.root={tmp_path / 'data'} still has" in message
  assert "another config.workdir to start anew" in message and "delete" not in message
  taken = run_of(tmp_path, tmp_path / "text", built=started)
  assert start(taken, tmp_path / "run").fingerprint == started
  assert start(taken, tmp_path / "run").fingerprint == started
  assert start(run, workdir.create(str(tmp_path / "anew"))).fingerprint != started


def test_a_machine_without_the_old_data_asks_for_a_copy(tmp_path, started):
  (tmp_path / "data").rename(tmp_path / "old machine")
  write_folder(tmp_path / "text", ["other", *TEXTS[1:]])
  message = refusal(run_of(tmp_path, tmp_path / "text"), tmp_path / "run")
  assert "the first is 0000.txt#0" in message
  assert "after config.data.root was copied from the machine that built them" in message
  taken = run_of(tmp_path, tmp_path / "text", built=started)
  with pytest.raises(ValueError, match="copy that folder from the machine that built the data"):
    start(taken, tmp_path / "run")
  shutil.rmtree(tmp_path / "data")
  shutil.copytree(tmp_path / "old machine", tmp_path / "data")
  assert start(taken, tmp_path / "run").fingerprint == started


@pytest.mark.parametrize(
  ("texts", "word"),
  [
    ([*TEXTS, "more"], "it had 30 documents and has 31, the first other one is 0030.txt#0"),
    (TEXTS[:29], "it had 30 documents and has 29, the first of them"),
    (["new", *TEXTS], "it had 30 documents and has 31, the first other one is 0000.txt#0"),
  ],
)
def test_more_and_fewer_documents(tmp_path, started, texts, word):
  shutil.rmtree(tmp_path / "text")
  run = run_of(tmp_path, write_folder(tmp_path / "text", texts))
  assert word in refusal(run, tmp_path / "run")


def test_many_documents_are_named_by_their_range(tmp_path, monkeypatch):
  monkeypatch.setattr(text_digest, "MOST_BLOCKS", 8)
  folder = workdir.create(str(tmp_path / "run"))
  start(run_of(tmp_path, write_folder(tmp_path / "text", TEXTS)), folder)
  (tmp_path / "text" / "0013.txt").write_text("other")
  message = refusal(run_of(tmp_path, tmp_path / "text"), folder)
  assert "the first that changed is one of 0012.txt#0 to 0015.txt#0" in message


def test_another_release_of_python_is_told(tmp_path, monkeypatch):
  library = tmp_path / "lib"
  library.mkdir()
  for number, text in enumerate(TEXTS):
    (library / f"module{number:02}.py").write_text(text, newline="")
  monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(library))
  folder = workdir.create(str(tmp_path / "run"))
  run = run_of(tmp_path, sources.STDLIB)
  started = start(run, folder).fingerprint
  (library / "module03.py").write_text("import os\n")
  message = refusal(run, folder)
  assert "module03.py#0 (python-stdlib is the text of the running Python, 3." in message
  taken = run_of(tmp_path, sources.STDLIB, built=started)
  assert start(taken, folder).fingerprint == started


OLD = "0123456789ab"  # a fingerprint of release 0.2, which held times and paths


@pytest.fixture
def old_run(tmp_path, started):
  """Turns the run into one of release 0.2: another fingerprint, no digests, no manifests."""
  (tmp_path / "run" / run_text.FILE_NAME).unlink()
  record = tmp_path / "run" / workdir.RECORD
  record.write_text(record.read_text().replace(started, OLD))
  root = tmp_path / "data"
  text = (root / f"summary-{started}.json").read_text()
  for folder in [*root.glob("rows/*"), *root.glob("tokenizers/*")]:
    old = folder.with_name(f"{folder.name[:-12]}{'1' * 12}")
    shutil.copytree(folder, old)
    (old / "manifest.json").unlink()
    text = text.replace(folder.name, old.name)
  (root / f"summary-{OLD}.json").write_text(text.replace(started, OLD))
  return started


def test_a_run_of_an_earlier_release_is_known_by_its_rows(tmp_path, old_run):
  run = run_of(tmp_path, tmp_path / "text")
  assert start(run, tmp_path / "run").fingerprint == old_run
  assert workdir.read(tmp_path / "run").data_fingerprint == old_run
  assert (tmp_path / "run" / run_text.FILE_NAME).exists()


@pytest.mark.parametrize("damage", ["rows", "summary", "tokenizer", "leads out"])
def test_other_rows_of_an_earlier_release_are_refused(tmp_path, old_run, damage):
  root = tmp_path / "data"
  summary = root / f"summary-{OLD}.json"
  if damage == "rows":
    path = next(root.glob("rows/*-111111111111/**/*train*array_record*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
  elif damage == "tokenizer":
    next(root.glob("tokenizers/*-111111111111/*")).write_text("{}")
  elif damage == "leads out":
    root = root.rename(tmp_path / "elsewhere")
    text = (root / summary.name).read_text().replace('"rows/', '"../elsewhere/rows/')
    (tmp_path / "data").mkdir()
    summary.write_text(text)
  else:
    summary.unlink()
  message = refusal(run_of(tmp_path, tmp_path / "text"), tmp_path / "run")
  assert "may have had other text at its start, of which documents.json there has no" in message
  if damage == "summary":
    assert f"copy the config.data.root of its start to {root}, and the same command" in message
    assert "config.data.built" not in message  # which takes nothing without a manifest
  else:
    assert "choose another config.workdir to start anew: the data of its start have no" in message


@pytest.mark.parametrize("damage", ["{", '{"stdlib": 3}', "flip", "pipe"])
def test_damaged_digests_do_not_hide_the_refusal(tmp_path, started, damage):
  documents = tmp_path / "run" / run_text.FILE_NAME
  whole = documents.read_text()
  write_folder(tmp_path / "text", ["other"])
  if damage == "pipe":
    documents.unlink()
    os.mkfifo(documents)
  else:
    flipped = whole.replace(json.loads(whole)["stdlib"]["blocks"][:6], "abcdef", 1)
    documents.write_text(flipped if damage == "flip" else damage)
  message = refusal(run_of(tmp_path, tmp_path / "text"), tmp_path / "run")
  assert f"set config.data.built={started} to go on" in message and "still has" in message


def test_other_built_data_than_those_of_the_start(tmp_path, started):
  write_folder(tmp_path / "text", ["other"])
  other = dataset.build(run_of(tmp_path, tmp_path / "text").data).fingerprint
  message = refusal(run_of(tmp_path, tmp_path / "text", built=other), tmp_path / "run")
  assert f"config.data.built={other} names other data than those of its start" in message
  assert f"set config.data.built={started}" in message


def test_a_weight_is_no_place(tmp_path, started):
  run = run_of(tmp_path, tmp_path / "text")
  config = tiny.get_config()
  config.update(run.resolved)
  config.data.corpora.stdlib.weight = 2.0
  message = refusal(experiment.build(config), tmp_path / "run")
  assert "config.data.corpora.stdlib.weight was 1.0 and is 2.0" in message


@pytest.mark.parametrize("corpora", [3, [["a"]], [["a", {"weight": "x"}]]])
def test_a_record_with_other_types(tmp_path, started, corpora):
  path = tmp_path / "run" / workdir.RECORD
  record = json.loads(path.read_text())
  record["identity"]["config.data.corpora"] = corpora
  path.write_text(json.dumps(record))
  with pytest.raises(ValueError, match=r"run\.json is damaged: identity: ") as caught:
    start(run_of(tmp_path, tmp_path / "text"), tmp_path / "run")
  assert "\n" not in str(caught.value)
