"""Mistakes in a config are one line that says what to change, before anything is built."""

import copy
import functools
import json
import re
import sys

import jax
import pytest

from configs import base, tiny
from resjax import combinators
from resjax.data.summary import DatasetSummary
from resjax.train import experiment
from resjax.train.runs import host_memory, workdir


def config(**changes):
  c = tiny.get_config()
  c.train.batch_size = 8
  c.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  return c


def dataset(folder, fingerprint="a"):
  tokens = folder / "source_tokenizer.json"
  tokens.write_text("tokens")
  return DatasetSummary(fingerprint, 256, 300, tokens, {}, folder / "summary.json")


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"model__residual__name": "atn_res"}, ["'atn_res'", "did you mean 'attn_res'?", "registered"]),
    (
      {"model__residual__name": "attenuation", "model__residual__attenuation__layers": (6,)},
      ["config.model.residual.attenuation", "layers=6", "-6..5"],
    ),
    (
      {"model__residual__name": "attenuation", "model__residual__attenuation__alpha": -0.1},
      ["alpha=-0.1", "alpha >= 0"],
    ),
    (
      {"model__residual__block_attn_res__layers_per_block": 0},
      ["config.model.residual.block_attn_res", "layers_per_block=0", "1..6"],
    ),
    (
      {"model__residual__name": "gate", "model__residual__gate__granularity": "head"},
      ["granularity='head'", "layer, depth_mixture, token, channel"],
    ),
    ({"model__d_model": 130}, ["config.model.d_model=130", "num_heads=4"]),
    ({"model__num_kv_heads": 3}, ["config.model.num_kv_heads=3", "divisor of num_heads=4"]),
    ({"model__short_swa__window": -1}, ["config.model.short_swa.window=-1", "0 or positive"]),
    (
      {"model__short_swa__window": 8, "model__short_swa__num_heads": 3},
      ["config.model.short_swa.num_heads=3", "d_model=128"],
    ),
    ({"model__value_residual": "all"}, ["config.model.value_residual='all'", "none, learned"]),
    ({"model__norm": "batchnorm"}, ["config.model.norm='batchnorm'", "rmsnorm, layernorm"]),
    ({"model__remat": "half"}, ["config.model.remat='half'", "none, dots, full"]),
    ({"model__dtype": "int8"}, ["config.model.dtype='int8'", "bfloat16"]),
    ({"train__batch_size": 12}, ["config.train.batch_size=12", "8", "config.mesh.data"]),
    ({"train__microbatches": 3}, ["config.train.batch_size=8", "config.train.microbatches=3"]),
    ({"model__attention": "flash"}, ["config.model.attention='flash'", "auto, xla, cudnn, splash"]),
    ({"model__norm_eps": 0.0}, ["config.model.norm_eps=0.0", "positive"]),
    ({"train__steps": 0}, ["config.train.steps=0", "at least 1"]),
    ({"train__alignment_every": -1}, ["config.train.alignment_every=-1", "at least 0"]),
    ({"train__alignment_rows": 0}, ["config.train.alignment_rows=0", "at least 1"]),
    ({"health__max_skipped": 0}, ["config.health.max_skipped=0", "at least 1"]),
    ({"mesh__data": 3}, ["config.mesh", "8 devices", "-1"]),
    (
      {"sharding__name": "long_context", "mesh__data": 1, "mesh__sequence": 8, "data__seq_len": 20},
      ["config.data.seq_len=20", "by 8", "config.mesh.sequence"],
    ),
    (
      {"mesh__data": 1, "mesh__sequence": 8},
      ["config.mesh.sequence=8", "'fsdp_tp'", "8 devices would compute the same"],
    ),
    ({"sharding__name": "fspd"}, ["config.sharding.name='fspd'", "did you mean 'fsdp'?"]),
    (
      {"sharding__fsdp_tp__tokens": ("seq",)},
      ["config.sharding", "tokens=('seq',)", "did you mean 'sequence'?"],
    ),
    ({"sharding__fsdp_tp__mlp": ("fsdp",)}, ["config.sharding", "batch and mlp", "'fsdp'"]),
    ({"data__validation_fraction": 0.0}, ["config.data.validation_fraction=0.0", "above 0"]),
    ({"data__tokenizer__name": "words"}, ["config.data.tokenizer.name", "bpe, byte"]),
    (
      {"model__residual__name": "gated_residual", "model__norm_gate__rank": 2},
      ["config.model.norm_gate.rank=2", "'gated_residual'", "set it to 0"],
    ),
    (
      {"model__residual__name": "mhc", "optim__combinator_lr_multipliers": ("query=0.1",)},
      ["config.optim.combinator_lr_multipliers", "'query'", "allowed: bias, projection, scale"],
    ),
    (
      {"model__residual__name": "standard", "optim__combinator_lr_multipliers": ("query=0.1",)},
      ["config.optim.combinator_lr_multipliers", "'query'", "allowed: none"],
    ),
  ],
)
def test_message_names_value_range_and_setting(changes, words):
  assert jax.device_count() == 8
  with pytest.raises(ValueError) as raised:
    experiment.build(config(**changes))
  message = str(raised.value)
  assert "\n" not in message
  for word in words:
    assert word in message


def test_unknown_section_key_names_the_nearest():
  values = config().to_dict()
  values["train"]["batchsize"] = 8
  with pytest.raises(ValueError, match=r"config\.train\.batchsize .* did you mean 'batch_size'\?"):
    experiment.build(values)


def test_missing_key_is_named():
  values = config().to_dict()
  del values["optim"]["b2"]
  with pytest.raises(ValueError, match=r"config\.optim\.b2 is missing"):
    experiment.build(values)


def test_platform_decides_the_activation_type():
  assert experiment.build(config()).decoder.dtype == "float32"
  assert experiment.build(config(model__dtype="bfloat16")).decoder.dtype == "bfloat16"


def test_rows_have_as_many_positions_as_tokens():
  run = experiment.build(config(data__seq_len=48, model__positions="learned"))
  assert run.decoder.max_positions == run.data.seq_len == 48


def test_both_styles_build():
  for style in ("gpt2", "llama"):
    c = base.get_config(style)
    run = experiment.build(c)
    assert run.decoder.positions == {"gpt2": "learned", "llama": "rope"}[style]


def test_folder_that_cannot_be_written(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match=r"cannot write to .*set config\.workdir"):
    workdir.create(str(tmp_path / "file" / "run"))
  run = tmp_path / "run"
  run.mkdir()
  (run / "checkpoints").write_text("a file where the folder of checkpoints should be")
  with pytest.raises(ValueError, match=r"cannot write to .*set config\.workdir"):
    workdir.create(str(run))


def test_record_keeps_config_versions_and_revision(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["launch.train", "--config.seed=1", "--api_key=hush"])
  run = experiment.build(config(workdir=str(tmp_path)))
  workdir.write(tmp_path, run, dataset(tmp_path), {"parameters": 7})
  found = workdir.read(tmp_path)
  assert found.config["model"]["d_model"] == 128
  assert found.environment.packages["jax"] == found.environment.facts["jax"] == jax.__version__
  assert found.environment.facts["devices"] == f"{jax.device_count()} x cpu"
  assert found.environment.command == [
    "launch.train",
    "--config.seed=1",
    "--api_key=***",
  ]
  assert experiment.load(str(tmp_path)).decoder == run.decoder
  assert found.config["model"]["dtype"] == "float32"  # resolved
  assert found.costs == workdir.Costs(parameters=7)
  assert (tmp_path / workdir.TOKENIZER).read_text() == "tokens"


@pytest.mark.parametrize(
  ("changes", "fingerprint", "word"),
  [
    ({"model__num_layers": 4}, "a", "config.model.num_layers was 6 and is 4"),
    ({"data__tokenizer__name": "byte"}, "b", "config.data.tokenizer was"),
    ({"model__residual__block_attn_res__layers_per_block": 3}, "a", "was 2 and is 3"),
    ({"seed": 1}, "a", "config.seed was 0 and is 1"),
    ({"init_seed": 1}, "a", "config.init_seed was -1 and is 1"),
    ({"data__order_seed": 1}, "a", "config.data.order_seed was -1 and is 1"),
    ({"optim__name": "muon"}, "a", "config.optim.name was 'adamw' and is 'muon'"),
    ({"train__init_from": "runs/a"}, "a", "config.train.init_from was '' and is 'runs/a'"),
    ({}, "b", "its tokenizer or its rows are not"),
  ],
)
def test_another_run_in_the_folder_is_refused(tmp_path, changes, fingerprint, word):
  workdir.write(tmp_path, experiment.build(config()), dataset(tmp_path), {})
  before = (tmp_path / workdir.RECORD).read_text()
  with pytest.raises(ValueError, match="holds another run") as raised:
    run = experiment.build(config(**changes))
    workdir.check(tmp_path, run)
    workdir.check_data(tmp_path, run, fingerprint, {})
  assert word in str(raised.value)
  assert (tmp_path / workdir.RECORD).read_text() == before


def test_a_run_records_the_options_of_its_own_system_alone():
  run = experiment.build(config(model__residual__gate__granularity="token"))
  options = combinators.options("block_attn_res") | {"layers_per_block": 2}
  assert run.decoder.residual.options == options
  assert run.resolved["model"]["residual"] == {"name": "block_attn_res", "block_attn_res": options}


def test_a_run_whose_record_has_the_options_of_all_systems_goes_on(tmp_path):
  """As those of earlier releases have; nothing of it counts as a change."""
  run = experiment.build(config(workdir=str(tmp_path)))
  workdir.write(tmp_path, run, dataset(tmp_path), {})
  record = json.loads((tmp_path / workdir.RECORD).read_text())
  own = record["config"]["model"]["residual"]
  every = {name: combinators.options(name) for name in combinators.names(shipped=True)}
  record["config"]["model"]["residual"] = every | own
  (tmp_path / workdir.RECORD).write_text(json.dumps(record))
  workdir.check(tmp_path, run)
  assert experiment.load(str(tmp_path)).decoder == run.decoder
  workdir.write(tmp_path, run, dataset(tmp_path), {}, after=7)
  found = json.loads((tmp_path / workdir.RECORD).read_text())
  assert found["config"]["model"]["residual"] == own
  assert [part["first_step"] for part in found["history"]] == [1]


def test_a_record_may_lack_an_option_that_has_its_default(tmp_path):
  workdir.write(tmp_path, experiment.build(config()), dataset(tmp_path), {})
  record = json.loads((tmp_path / workdir.RECORD).read_text())
  del record["identity"]["config.model.residual.block_attn_res.two_phase"]
  (tmp_path / workdir.RECORD).write_text(json.dumps(record))
  workdir.check(tmp_path, experiment.build(config()))
  with pytest.raises(ValueError, match=r"two_phase was 'auto' and is 'never'"):
    changed = config(model__residual__block_attn_res__two_phase="never")
    workdir.check(tmp_path, experiment.build(changed))


def test_seeds_of_one_purpose_override_the_seed():
  assert experiment.build(config(seed=3)).seeds == (3, 3)
  assert experiment.build(config(seed=3, init_seed=0)).seeds == (0, 3)
  assert experiment.build(config(seed=3, data__order_seed=2**32 - 1)).seeds == (3, 2**32 - 1)


def test_a_run_from_before_there_were_several_seeds_goes_on(tmp_path):
  workdir.write(tmp_path, experiment.build(config(seed=3)), dataset(tmp_path), {})
  record = json.loads((tmp_path / workdir.RECORD).read_text())
  del record["config"]["init_seed"], record["config"]["data"]["order_seed"]
  del record["identity"]["config.init_seed"], record["identity"]["config.data.order_seed"]
  (tmp_path / workdir.RECORD).write_text(json.dumps(record))
  workdir.check(tmp_path, experiment.build(config(seed=3)))
  assert experiment.load(str(tmp_path)).seeds == (3, 3)
  with pytest.raises(ValueError, match=r"config\.init_seed was -1 and is 4"):
    workdir.check(tmp_path, experiment.build(config(seed=3, init_seed=4)))


def test_how_a_step_is_computed_may_change(tmp_path):
  workdir.write(tmp_path, experiment.build(config()), dataset(tmp_path), {})
  changed = config(
    model__remat="full",
    train__steps=500,
    optim__learning_rate=1e-3,
    optim__combinator_lr_multiplier=2.0,
  )
  workdir.check(tmp_path, experiment.build(changed))


def test_two_trainers_in_one_folder(tmp_path):
  in_use = pytest.raises(ValueError, match=r"another process trains in .*config\.workdir")
  with workdir.lock(tmp_path), in_use, workdir.lock(tmp_path):
    pass
  with workdir.lock(tmp_path):
    pass


@pytest.mark.parametrize(
  ("path", "value", "words"),
  [
    ((), [], ["expected object, got array"]),
    (("data_fingerprint",), "../../a", ["data_fingerprint is '../../a'", "matching regex"]),
    (("data_fingerprint",), None, ["data_fingerprint is None", "expected str"]),
    (("identity",), 3, ["identity is 3", "expected object"]),
    (("costs", "parameters"), -1, ["costs.parameters is -1", ">= 0"]),
    (("config", "model"), "x", ["config.model='x'", "a section of settings"]),
    (
      ("config", "model", "residual"),
      {},
      ["config.model.residual.name=None", "name of a combinator"],
    ),
    (("config", "model", "residual", "name"), "gone", ["config.model.residual.name", "gone"]),
    (("config", "data", "tokenizer"), 1, ["config.data.tokenizer=1", "a section"]),
    (("config", "train", "init_from"), None, ["config.train.init_from=None", "a text"]),
    (("config", "seed"), 1.5, ["config.seed=1.5", "a whole number"]),
  ],
)
def test_damaged_record(tmp_path, path, value, words):
  workdir.write(tmp_path, experiment.build(config()), dataset(tmp_path), {})
  whole = {"": json.loads((tmp_path / workdir.RECORD).read_text())}
  entry, key = whole, ""
  for step in path:
    entry, key = entry[key], step
  entry[key] = value
  (tmp_path / workdir.RECORD).write_text(json.dumps(whole[""]))
  with pytest.raises(ValueError) as caught:
    experiment.load(str(tmp_path))
  for word in words:
    assert word in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_cut_record(tmp_path):
  (tmp_path / workdir.RECORD).write_text("{")
  with pytest.raises(ValueError, match=r"run\.json holds no JSON: .*; it is damaged: restore it"):
    workdir.read(tmp_path)


def test_folder_without_a_run(tmp_path):
  with pytest.raises(ValueError, match=r"holds no run: run\.json is missing"):
    experiment.load(str(tmp_path))


LIKE_NO_NUMBER = (None, "x", float("nan"), float("inf"), True, (1,), {})


def leaves(values, path=()):
  for key, value in values.items():
    if isinstance(value, dict):
      yield from leaves(value, (*path, key))
    else:
      yield (*path, key), value


def test_every_setting_has_its_type():
  """Each number of a config is replaced by what is none, and each text by a number."""
  given = config().to_dict()
  for name in set(given["model"]["residual"]) - {"name", "block_attn_res"}:
    del given["model"]["residual"][name]
  for name in set(given["sharding"]) - {"name", "fsdp_tp"}:
    del given["sharding"][name]
  refused = 0
  for path, value in leaves(given):
    others = {int: (*LIKE_NO_NUMBER, 10**30, -(10**30)), float: (*LIKE_NO_NUMBER, 10**400, 1e-300)}
    wrong = others.get(type(value), (None, 7, float("inf"), {"a": 1}))
    for other in wrong:
      values = copy.deepcopy(given)
      *way, key = path
      functools.reduce(dict.__getitem__, way, values)[key] = other
      with pytest.raises(ValueError) as raised:
        experiment.build(values)
      message = str(raised.value)
      assert "\n" not in message and key in message, (path, other, message)
      refused += 1
  assert refused > 500


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"extra": 1}, "config.extra is not a setting"),
    ({"models": 1}, "config.models is not a setting; did you mean 'model'?"),
    ({"workdir": ""}, "config.workdir='' names no folder"),
    ({"workdir": "  "}, "names no folder"),
    ({"workdir": "a\0b"}, "config.workdir='a\\x00b' must be a text in UTF-8 without zeros"),
    ({"workdir": "a\udcff"}, "must be a text in UTF-8"),
    ({"seed": -1}, "config.seed=-1 must be in 0..4294967295"),
    ({"seed": 2**32}, "config.seed=4294967296 must be a whole number of at most 4,294,967,295"),
    ({"init_seed": -2}, "config.init_seed=-2 must be in 0..4294967295 or -1, as config.seed"),
    ({"model": 1}, "config.model=1 must be a section of settings"),
    ({"mesh": None}, "config.mesh=None must be a section of settings"),
  ],
)
def test_keys_outside_of_sections(change, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    experiment.build(config().to_dict() | change)


def test_sections_must_be_there():
  given = config().to_dict()
  for section in given:
    values = {key: value for key, value in given.items() if key != section}
    with pytest.raises(ValueError, match=rf"config\.{section} is missing"):
      experiment.build(values)
  values = copy.deepcopy(given)
  values["model"]["residual"]["attn_ress"] = {}
  with pytest.raises(ValueError, match=r"residual\.attn_ress is not a setting; did you mean 'attn"):
    experiment.build(values)


@pytest.mark.parametrize(
  "changes",
  [
    {"model__num_layers": 4000, "model__d_model": 1 << 17, "model__mlp_dim": 1 << 19},
    {"data__seq_len": 1 << 24, "train__batch_size": 1 << 16},
    {"model__moe__num_experts": 1 << 16, "model__moe__expert_dim": 1 << 20},
  ],
)
def test_a_run_that_no_machine_holds_is_refused_at_once(changes):
  run = experiment.build(config(model__residual__name="standard", **changes))
  with pytest.raises(
    ValueError, match=r"needs more than [\d,]+ GiB .* config\.train\.microbatches"
  ):
    host_memory.check(run)


def test_other_runs_fit():
  host_memory.check(experiment.build(config()))
