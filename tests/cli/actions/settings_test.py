"""Configs by name, path or mapping, with other values for settings; mistakes are one line."""

import pathlib
import sys
from types import ModuleType

import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import base, tiny
from resjax import combinators
from resjax.cli.actions.settings import overridden, read_config
from resjax.combinators import registry
from resjax.study import config_tree
from resjax.train import experiment


def test_a_name_a_path_and_a_config_are_the_same(tmp_path):
  file = tmp_path / "my.py"
  file.write_text(
    "from configs import tiny\n\n\ndef get_config(steps='300'):\n  c = tiny.get_config()\n"
    "  c.train.steps = int(steps)\n  return c\n"
  )
  found = [read_config(source, {}) for source in ("tiny", file, tiny.get_config(), f"{file}:300")]
  whole = tiny.get_config()
  options = combinators.options("block_attn_res") | {"layers_per_block": 2}
  whole.model.residual.block_attn_res = options
  assert all(one.to_json() == whole.to_json() for one in found)
  assert read_config(f"{file}:7", {}).train.steps == 7
  assert read_config("base:gpt2", {}).model.norm == "layernorm"


def test_a_package_configs_of_the_user_stays_what_it_is(monkeypatch):
  theirs = ModuleType("configs")
  monkeypatch.setitem(sys.modules, "configs", theirs)
  monkeypatch.delitem(sys.modules, "configs.base", raising=False)
  path = sys.path[:]
  assert read_config("tiny", {}).train.steps == 300
  assert sys.modules["configs"] is theirs and "configs.base" not in sys.modules
  assert sys.path == path


def test_a_folder_configs_of_the_user_is_searched_behind_the_shipped_one(tmp_path):
  own = tmp_path / "configs"
  (own / "more").mkdir(parents=True)
  (own / "mine.py").write_text("from configs import tiny\n\nget_config = tiny.get_config\n")
  (own / "more" / "next.py").write_text("from configs.mine import get_config\n")
  (own / "tiny.py").write_text("from configs.tiny import get_config\n")
  for name in ("tiny.py", "mine.py"):  # a copy is as good, and a file that builds on its namesake
    assert read_config(own / name, {}).train.steps == 300
    (own / "tiny.py").write_text(pathlib.Path(tiny.__file__).read_text())
  assert read_config(own / "more" / "next.py", {}).train.steps == 300
  (own / "tiny.py").write_text("steps = 7\n")
  with pytest.raises(ValueError, match=r"configs.tiny is imported from resjax, not from .*tiny"):
    read_config(own / "mine.py", {})
  assert sys.modules["configs.tiny"] is tiny and "configs.mine" not in sys.modules


def test_overrides_by_dotted_names_and_by_sections():
  own = tiny.get_config()
  values = {
    "train.steps": 2,
    "model": {"residual": {"name": "gate", "gate.kappa": 2}, "d_model": 8},
  }
  config = read_config(own, values | {"workdir": pathlib.Path("here"), "model.windows": [4, 0]})
  assert (config.train.steps, config.model.d_model, config.workdir) == (2, 8, "here")
  assert (config.model.residual.name, config.model.residual.gate.kappa) == ("gate", 2.0)
  assert config.model.windows == (4, 0)
  assert own.to_json() == tiny.get_config().to_json()  # it is a copy


# As Optuna, pandas, NumPy and JAX give them.
OF_OTHERS = [
  ("optim.learning_rate", np.float32(0.25), 0.25),
  ("optim.learning_rate", jnp.float32(0.25), 0.25),
  ("train.steps", np.int64(3), 3),
  ("train.steps", jnp.array(3), 3),
  ("train.steps", np.float64(3), 3),
  ("train.steps", 3.0, 3),
  ("model.windows", np.array([4, 0]), (4, 0)),
  ("model.windows", [np.int32(4), jnp.int32(0)], (4, 0)),
  ("model.tied_embeddings", np.bool_(False), False),
  ("model.residual.name", np.str_("gate"), "gate"),
  ("model.dtype", jnp.bfloat16, "bfloat16"),
  ("model.dtype", np.dtype("float32"), "float32"),
  ("data.root", pathlib.Path("here"), "here"),
]


@pytest.mark.parametrize(("name", "value", "want"), OF_OTHERS)
def test_values_of_other_libraries(name, value, want):
  found = config_tree.flat(read_config("tiny", {name: value}).to_dict())[name]
  assert found == want and type(found) is type(want)


def test_an_own_config_with_values_of_other_libraries():
  own = tiny.get_config()
  own.optim.learning_rate, own.model.windows = np.float64(0.25), (np.float64(4), np.int64(0))
  run = experiment.build(own)
  assert [*map(type, (run.optim.learning_rate, *run.decoder.windows))] == [float, int, int]
  assert type(run.resolved["optim"]["learning_rate"]) is float


MISTAKES = [
  ({"train.steps": np.float64(2.5)}, ["config.train.steps=np.float64(2.5)", "of type int"]),
  ({"train.steps": np.array([[2], [3]])}, ["config.train.steps=array([[2], [3]])", "of type int"]),
  ({"train.steps": 1e300}, ["config.train.steps=1000", "(301 characters)", "at most 2,147"]),
  ({"model.tied_embeddings": np.int64(1)}, ["tied_embeddings=np.int64(1)", "of type bool"]),
  ({"optim.learning_rate": np.float32("nan")}, ["config.optim.learning_rate=nan", "finite"]),
  ({"train.stepz": 2}, ["config.train.stepz is not a setting", "did you mean 'steps'?"]),
  ({"trian": {"steps": 2}}, ["config.trian is not a setting", "did you mean 'train'?"]),
  ({"model": {"residual": {"gate.kapa": 1}}}, ["config.model.residual.gate.kapa", "'kappa'"]),
  ({"train.steps": "2"}, ["config.train.steps='2'", "of type int"]),
  ({"train.steps": 2.5}, ["config.train.steps=2.5", "of type int"]),
  ({"train.steps.first": 2}, ["config.train.steps", "no settings of its own"]),
  ({"model": 3}, ["config.model=3", "section"]),
  ({"model.residual.name": "gat"}, ["config.model.residual.name", "did you mean 'gate'?"]),
  ([("train.steps", 2)], ["overrides=[", "give a mapping"]),
  ("train.steps=2", ["overrides='train.steps=2'", "give a mapping"]),
]


@pytest.mark.parametrize(("values", "words"), MISTAKES)
def test_mistakes_in_settings(values, words):
  with pytest.raises(ValueError) as raised:
    experiment.build(read_config("tiny", values))
  said = str(raised.value)
  assert all(word in said for word in words) and "\n" not in said, said


def test_other_values_of_a_run_are_a_mapping():
  with pytest.raises(ValueError, match=r"overrides=.*give a mapping"):
    overridden(tiny.get_config(), [("train.steps", 2)])


def test_mistakes_in_files(tmp_path):
  (tmp_path / "none.py").touch()
  (tmp_path / "text.txt").touch()
  (tmp_path / "plain.py").write_text("def get_config():\n  return {}\n")
  for source, words in [
    ("tny", "tiny"),
    (tmp_path / "none.py", "no function get_config"),
    (tmp_path / "text.txt", "no file of Python"),
    (tmp_path / "plain.py", "returns dict"),
    ("tiny:deep", "get_config.* was given 'deep': too many"),
    (7, "config=7; give a name"),
  ]:
    with pytest.raises(ValueError, match=words):
      read_config(source, {})


def test_options_of_a_combinator_from_outside(tmp_path, monkeypatch):
  (tmp_path / "outsiders_of_settings.py").write_text(
    "from resjax import combinators\n\n\nclass Mine(combinators.Standard):\n"
    "  def __init__(self, *, rate: float = 0.5, **options):\n    super().__init__(**options)\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
  name = "outsiders_of_settings:Mine"
  config = read_config("tiny", {"model.residual": {"name": name, "Mine.rate": 0.25}})
  assert config.model.residual.Mine.rate == 0.25
  assert "Mine" not in read_config("tiny", {}).model.residual
  # What a record of a run names is not imported, unless the caller names it too.
  recorded = ConfigDict(base.get_config().to_dict())
  recorded.model.residual.name = "not_imported:Mine"
  assert "Mine" not in overridden(recorded, {"train.steps": 2}).model.residual
