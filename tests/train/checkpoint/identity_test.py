"""A checkpoint says of which run and step it is; trainers refuse others, and readers name them."""

import json
import pathlib
import shutil

import pytest
from etils import epath

from configs import tiny
from resjax.base import manifest
from resjax.cli.actions import loading
from resjax.train import experiment
from resjax.train.checkpoint import identity
from resjax.train.checkpoint.identity import Identity
from resjax.train.checkpoint.manager import Checkpoints
from resjax.train.runs import lineage, restore
from tests.helpers import trained
from tests.helpers.checkpoints import assert_restores, numbers, settings, small_state
from tests.helpers.runs import write_text

A, B = "a" * 16, "b" * 16


def opened(folder, run):
  return Checkpoints(folder, settings(), batch_size=8, run=run and Identity(run=run, config="c"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> pathlib.Path:
  """Steps 10 and 20 of two runs, and of one from before checkpoints said anything."""
  root = tmp_path_factory.mktemp("saved")
  for name, run in (("a", A), ("b", B), ("old", None)):
    with opened(root / name, run) as checkpoints:
      for step in (10, 20):
        batches = numbers()
        batches.set_state({"next_index": step})
        checkpoints.save(step, small_state(step), batches)
  return root


@pytest.fixture
def folders(saved, tmp_path) -> pathlib.Path:
  shutil.copytree(saved, tmp_path / "copy")
  return tmp_path / "copy"


def refusal(folder, run) -> str:
  with opened(folder, run) as checkpoints, pytest.raises(ValueError, match="bring back") as caught:
    assert_restores(checkpoints, 20)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def test_facts_are_in_the_manifest_and_cannot_be_changed(folders):
  place = folders / "a" / "20"
  assert identity.of(place) == Identity(run=A, step=20, config="c")
  content = json.loads((place / manifest.FILE_NAME).read_text())
  assert content["facts"] == {"run": A, "step": 20, "config": "c", "parent": None}
  content["facts"]["step"] = 30
  (place / manifest.FILE_NAME).write_text(json.dumps(content))
  with pytest.raises(manifest.Damaged, match=r"manifest\.json was altered"):
    identity.of(place)


def test_its_own_are_taken(folders):
  with opened(folders / "a", A) as checkpoints:
    assert_restores(checkpoints, 20)


def test_a_renamed_one_is_refused_and_nothing_moves(folders):
  (folders / "a" / "20").rename(folders / "a" / "30")
  words = refusal(folders / "a", A)
  assert f"30 is checkpoint 20 of run {A}, but its folder says step 30; " in words
  assert sorted(path.name for path in (folders / "a").iterdir()) == ["10", "30"]
  (folders / "a" / "30").rename(folders / "a" / "20")
  with opened(folders / "a", A) as checkpoints:
    assert_restores(checkpoints, 20)


def test_swapped_ones_are_refused(folders):
  for old, new in (("10", "x"), ("20", "10"), ("x", "20")):
    (folders / "a" / old).rename(folders / "a" / new)
  assert f"20 is checkpoint 10 of run {A}, but its folder says step 20" in refusal(folders / "a", A)


def test_one_of_another_run_is_refused_and_the_advice_works(folders):
  shutil.rmtree(folders / "a" / "20")
  shutil.copytree(folders / "b" / "20", folders / "a" / "20")
  words = refusal(folders / "a", A)
  assert f"is checkpoint 20 of run {B}, but this run is {A}; " in words
  shutil.rmtree(folders / "a" / "20")
  with opened(folders / "a", A) as checkpoints:
    assert_restores(checkpoints, 10)


def test_one_that_says_nothing_is_read_and_later_ones_speak(folders):
  assert identity.of(folders / "old" / "20") == Identity()
  with opened(folders / "old", A) as checkpoints:
    assert_restores(checkpoints, 20)
    checkpoints.save(30, small_state(30), numbers())
  assert identity.of(folders / "old" / "30").run == A


@pytest.mark.parametrize("name", ["a", "old"])
def test_a_run_whose_record_is_lost_gets_no_other_name(folders, tmp_path, name):
  """All of its checkpoints would be those of another run; old ones do not say whose they are."""
  (tmp_path / "run").mkdir()
  (folders / name).rename(tmp_path / "run" / "checkpoints")
  run = experiment.build(tiny.get_config())
  if name == "old":
    assert lineage.find(tmp_path / "run", run, None)["run"]
    return
  lost = rf"run\.json is missing, and .*/20 is checkpoint 20 of run {A}; bring back the run\.json"
  with pytest.raises(ValueError, match=lost):
    lineage.find(tmp_path / "run", run, None)


def test_facts_of_a_stranger(folders):
  place = epath.Path(folders / "a" / "20")
  (place / manifest.FILE_NAME).unlink()
  for facts, words in (
    ({"run": "[/x]\n", "step": 20}, "run"),
    ({"run": A, "step": "20"}, "step"),
    ({"run": A, "step": -1}, "step"),
  ):
    manifest.write(place, facts)
    with pytest.raises(ValueError, match=rf"manifest.json: {words} is ") as caught:
      identity.of(place)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
  return write_text(tmp_path_factory.mktemp("runs"))


def config(root, name, **train):
  c = trained.settings(root, root / name, "standard", **train)
  c.checkpoint.every = 2
  return c


@pytest.mark.slow
def test_a_run_keeps_its_name_and_its_child_knows_it(root, capsys):
  trained.run(config(root, "parent"))
  record = json.loads((root / "parent" / "run.json").read_text())["lineage"]
  first = identity.of(root / "parent" / "checkpoints" / "2")
  assert record == {"run": first.run, "parent": None} and first.step == 2
  trained.run(config(root, "parent", steps=5))
  last = identity.of(root / "parent" / "checkpoints" / "5")
  assert (last.run, last.step) == (first.run, 5) and last.config != first.config

  child = config(root, "child", init_from=str(root / "parent"))
  trained.run(child)
  found = identity.of(root / "child" / "checkpoints" / "3")
  assert found.run != first.run and found.parent == {"run": first.run, "step": 5}
  trained.run(config(root, "child", init_from=str(root / "parent"), steps=4))
  assert identity.of(root / "child" / "checkpoints" / "4").parent == found.parent

  # Readers take what was moved, and say what it is.
  model = loading.from_workdir(str(root / "child"))
  assert model.name == "child, step 4" and capsys.readouterr().err == ""
  moved = root / "child" / "checkpoints" / "9"
  shutil.copytree(root / "parent" / "checkpoints" / "5", moved)
  assert loading.from_workdir(str(moved)).name == f"child, checkpoint 5 of run {first.run}"
  assert f"{moved} is checkpoint 5 of run {first.run}; it was moved" in capsys.readouterr().err
  assert restore.find(str(moved), "--workdir").step == 5
  with pytest.raises(ValueError, match=f"checkpoint 5 of run {first.run}, but its folder says"):
    trained.run(child)


@pytest.mark.slow
def test_another_seed(root):
  for name, seed in (("zero", 0), ("one", 1)):
    c = config(root, name)
    c.seed = seed
    trained.run(c)
  shutil.rmtree(root / "zero" / "checkpoints" / "3")
  shutil.copytree(root / "one" / "checkpoints" / "3", root / "zero" / "checkpoints" / "3")
  with pytest.raises(ValueError, match=r"checkpoint 3 of run \w+, but this run is \w+; bring back"):
    trained.run(config(root, "zero"))
