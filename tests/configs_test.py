"""Every config file: loads without JAX, builds, trains; every run of every sweep builds."""

import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from configs import base
from configs.ablations import depthbench, depthbench_1m, lns_rate
from resjax import combinators
from resjax.base.records.metrics_log import METRICS_FILE, read_metrics
from resjax.combinators.systems import gate
from resjax.study.sweeps import plan
from resjax.study.sweeps.runs import expand
from resjax.train import experiment, program
from resjax.train.dry_run import dry_run
from resjax.train.loop import train
from resjax.train.run_tables import model_costs
from tests.data.conftest import make_texts, write_folder

ROOT = Path(__file__).parents[1]
FILES = sorted(
  path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.py") if path.name != "__init__.py"
)
MODULES = [".".join(path.with_suffix("").parts) for path in FILES]
SWEEPS = [name for name in MODULES if name.startswith("configs.ablations.")]
SIZES = ("tiny", "gpt2_124m")
PLANNED = (
  "configs.ablations.causal_shift_124m",
  "configs.ablations.depthbench",
  "configs.ablations.depthbench_1m",
  "configs.ablations.factory_s",
  "configs.ablations.gated_residual",
  "configs.ablations.h100_45min",
  "configs.ablations.lns_rate",
  "configs.ablations.moe_order",
)
WITHOUT_SIZE = (
  "configs.ablations.compare",
  "configs.ablations.finetune_cuts",
  "configs.ablations.from_start",
  "configs.ablations.one_parent",
  "configs.ablations.synthetic",
  *PLANNED,
)
RUNS = [(name, size) for name in SWEEPS for size in SIZES if name not in WITHOUT_SIZE]
RUNS += [(name, None) for name in WITHOUT_SIZE]
FOLDER = str(ROOT / "tests" / "golden" / "huggingface" / "gemma2")
RUNS.append(("configs.ablations.finetune_cuts", FOLDER))
RUNS += [("configs.ablations.compare", "moe"), ("configs.ablations.moe_order", "moe")]
# All others start from one of these.
BASES = [("base", "llama"), ("tiny", None), ("gpt2_124m", "attn_res")]


def _load(module, argument=None):
  config = importlib.import_module(module).get_config(*([argument] if argument else []))
  config.lock()
  return config


def test_configs_are_data_only():
  program = (
    "import importlib, json, sys\n"
    "for name in sys.argv[1:]: importlib.import_module(name).get_config()\n"
    "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
  )
  command = [sys.executable, "-c", program, *MODULES]
  result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
  imported = set(json.loads(result.stdout))
  assert {"configs", "ml_collections"} <= imported
  assert not imported & {"jax", "jaxlib", "flax", "numpy", "resjax"}


@pytest.mark.parametrize("module", MODULES)
def test_has_a_docstring_with_its_command_and_builds(module):
  name = module.removeprefix("configs.").replace(".", "/")
  commands = re.findall(
    r"^ +resjax \w+ --config=([\w/]+)", importlib.import_module(module).__doc__, re.M
  )
  assert name in commands
  config = _load(module, FOLDER if module == "configs.finetune" else None)
  config.mesh.update(data=-1, fsdp=1)  # some are made for more devices than there are
  assert experiment.build(config).workdir.startswith("runs/")


def test_a_combinator_can_be_the_argument_of_gpt2_124m():
  assert experiment.build(_load("configs.gpt2_124m", "gate")).decoder.residual.name == "gate"
  with pytest.raises(ValueError, match="did you mean 'gate'"):
    experiment.build(_load("configs.gpt2_124m", "gat"))


@pytest.mark.parametrize("module", ["configs.llama_1p3b", "configs.llama_7b", "configs.moe_8b_a1b"])
def test_a_slice_chooses_recomputation_and_microbatches(module):
  plain, slices = _load(module), importlib.import_module(module).SLICES
  assert plain.model.remat == "full"  # fits every slice
  for name, settings in slices.items():
    for argument in (name, f"gate,{name}", f"{name},gate"):
      c = _load(module, argument)
      residual = "gate" if "gate" in argument else plain.model.residual.name
      chosen = {"fsdp": c.mesh.fsdp, "remat": c.model.remat, "microbatches": c.train.microbatches}
      assert (chosen, c.model.residual.name) == (settings, residual)
  for argument in (
    "gate,mhc,v5e-256",
    "gate,mhc",
    "v5e-256,v6e-256",
    "v5p-511",
    "standard,v5p-511",
  ):
    listed = f"is not a combinator, a slice, or both .*: {', '.join(slices)}$"
    with pytest.raises(ValueError, match=listed):
      _load(module, argument)


def test_gpt2_124m_is_gpt2():
  run = experiment.build(_load("configs.gpt2_124m"))
  tokens = run.train.steps * run.train.batch_size * run.data.seq_len
  assert tokens == pytest.approx(10e9, rel=1e-4)
  d, v = run.decoder.d_model, run.data.tokenizer.vocab_size
  layer = 4 * d * d + 4 * d + 8 * d * d + 5 * d + 4 * d  # attention, MLP, norms
  assert v * d + 1024 * d + run.decoder.num_layers * layer + 2 * d == 124_439_808  # as published
  assert (run.decoder.positions, run.decoder.norm, run.decoder.mlp) == (
    "learned",
    "layernorm",
    "gelu",
  )


@pytest.mark.parametrize(
  ("module", "parameters", "tokens"),
  [("llama_1p3b", 1.35e9, 26.8e9), ("llama_7b", 6.74e9, 134e9)],
)
def test_llama_configs_have_their_sizes(module, parameters, tokens):
  config = _load(f"configs.{module}", "gate")
  assert config.model.residual.name == "gate"
  m, train = config.model, config.train
  layer = 4 * m.d_model**2 + 3 * m.d_model * m.mlp_dim
  embeddings = 2 * config.data.tokenizer.vocab_size * m.d_model
  assert m.num_layers * layer + embeddings == pytest.approx(parameters, rel=0.01)
  seen = train.steps * train.batch_size * config.data.seq_len
  assert seen == pytest.approx(tokens, rel=0.01)
  # Every slice that the docstring names gives each device whole rows in each microbatch.
  assert all(train.batch_size % (chips * train.microbatches) == 0 for chips in (256, 512))
  assert m.num_layers == 8 * m.residual.block_attn_res.layers_per_block


@pytest.mark.parametrize(("module", "size"), RUNS)
def test_every_run_of_a_sweep_builds(module, size):
  config = _load(module, size)
  config.mesh.update(data=-1, fsdp=1)
  runs = expand(config, importlib.import_module(module).sweep(config))
  built = [experiment.build(run.config) for run in runs]
  first = "unchanged" if module.endswith("one_parent") else "standard"
  assert runs[0].name == first and built[0].decoder.residual.name == "standard"
  different = [(str(run.decoder), str(run.optim)) for run in built]
  assert len(set(different)) == len(runs)  # no run twice under two names
  assert len({run.workdir for run in built}) == len(runs)


def _planned(module, argument=None):
  """Returns the questions of a planned sweep, its plan, and the first run of each arm by name."""
  config = _load(module, argument)
  config.mesh.update(data=-1, fsdp=1)
  file = importlib.import_module(module)
  arms = {run.arm: run.overrides for run in expand(config, file.sweep(config))}
  asked = plan.questions(file.PLAN, list(arms))
  runs = expand(config, arms.items(), asked.seeds)
  assert len(runs) == len(arms) * len(asked.seeds)
  made = plan.make(asked, runs, None, 0.0)
  return asked, made, {run.arm: experiment.build(run.config) for run in runs[: len(arms)]}


def test_h100_45min_is_the_plan_that_it_says():
  asked, made, runs = _planned("configs.ablations.h100_45min")
  assert asked.contrasts == tuple((arm, "standard") for arm in list(runs)[1:]) and len(runs) == 8
  assert len(asked.seeds) == 5 and asked.tuning.seed not in asked.seeds
  assert [*{arm.tokens for arm in made.arms.values()}] == [pytest.approx(50e6, rel=1e-3)]
  run = runs["standard"]
  costs = model_costs(program.build(run).model, run)
  assert costs["parameters"] == pytest.approx(10.6e6 + 12.6e6, rel=0.005)
  assert costs["training_flops_per_token"] == pytest.approx(146e6, rel=0.005)
  assert run.train.eval_rows * run.data.seq_len >= 10e6
  tuning = asked.tuning.steps * run.train.batch_size * run.data.seq_len
  assert tuning == pytest.approx(10e6, rel=0.005)
  # The warm-up and the blocks fit the runs of tuning, too.
  assert run.optim.warmup_steps < asked.tuning.steps
  dry_run(runs["hyper_connections"], Console(file=io.StringIO()))


@pytest.mark.parametrize(
  ("module", "millions"),
  [
    # As the table of DepthBench's configs/README.md has them, with 24 rows more in two embeddings.
    (depthbench, {16: 407, 20: 414, 24: 405, 28: 406, 32: 399, 42: 404, 70: 409}),
    # Of the layers: 12 D² each and their norms.
    (depthbench_1m, {6: 1.038, 12: 1.018, 24: 1.040, 48: 1.020}),
  ],
)
def test_shapes_of_depthbench_hold_the_parameters(module, millions):
  assert [*module.SHAPES] == [*millions]
  for layers, wanted in millions.items():
    config = module.get_config(str(layers))
    config.mesh.fsdp = 1
    run = experiment.build(config)
    counted = model_costs(program.build(run).model, run)["parameters"]
    if module is depthbench_1m:
      counted -= run.decoder.d_model * (run.data.tokenizer.vocab_size + 1)
    assert counted / 1e6 == pytest.approx(wanted, abs=0.5 if wanted > 100 else 0.0006)
    assert 6 <= -(-layers // config.model.residual.block_attn_res.layers_per_block) <= 8
  with pytest.raises(ValueError, match="'7' layers: one of"):
    module.get_config("7")


@pytest.mark.parametrize("argument", ["depthbench:70", "depthbench_1m:48", "lns_rate:48,0.002"])
def test_depth_sweeps_are_the_plans_that_they_say(argument):
  name, _, shape = argument.partition(":")
  asked, made, runs = _planned(f"configs.ablations.{name}", shape)
  assert all(pair in asked.contrasts for pair in {
    "depthbench": [(arm, "standard") for arm in runs if arm != "standard"],
    "depthbench_1m": [(arm, "standard") for arm in runs if arm != "standard"]
    + [("hyper_connections", "mhc")],
    "lns_rate": [("lns-x5", "lns")],
  }[name])  # fmt: skip
  (tokens,) = {arm.tokens for arm in made.arms.values()}
  assert tokens == pytest.approx(8e9 if name == "depthbench" else 256_000, rel=0.01)
  rates = {arm: run.optim.learning_rate for arm, run in runs.items()}
  if name == "lns_rate":
    assert rates == {"standard": 0.002, "standard-x5": 0.01, "lns": 0.002, "lns-x5": 0.01}
  else:
    assert len(runs) == 10 and asked.tuning.seed not in asked.seeds
    assert runs["sandwich"].decoder.post_norm and not runs["deepnorm"].decoder.scaled_output_init
    grid = asked.tuning.settings["optim.learning_rate"]
    assert all(run.optim.warmup_steps * 10 == run.train.steps for run in runs.values())
  if name == "depthbench":
    assert [rates["standard"] * factor for factor in grid] == [5e-4, 1e-3, 2e-3, 5e-3]
    assert rates["lns"] * grid[-2] == pytest.approx(1e-2)
    dry_run(runs["mhc"], Console(file=io.StringIO()))


def test_moe_order_compares_as_many_operations():
  costs = []
  for kind in ("dense", "moe"):
    asked, made, runs = _planned("configs.ablations.moe_order", kind)
    assert asked.contrasts == tuple((arm, "standard") for arm in [*runs][1:]) and len(runs) == 7
    assert len(asked.seeds) == 5 and asked.tuning.seed not in asked.seeds
    assert {arm.tokens for arm in made.arms.values()} == {256_000}
    costs.append(model_costs(program.build(runs["standard"]).model, runs["standard"]))
  dense, moe = costs
  flops = "training_flops_per_token"
  assert moe[flops] / dense[flops] == pytest.approx(1.006, abs=0.0005)
  layers = [found["parameters"] - 1024 * 96 for found in costs]
  assert layers[1] / layers[0] == pytest.approx(3.2, abs=0.05)


def test_factory_s_has_the_sizes_of_the_original():
  asked, made, runs = _planned("configs.ablations.factory_s")
  assert [*{arm.tokens for arm in made.arms.values()}] == [pytest.approx(0.79e9, rel=0.005)]
  assert {run.optim.learning_rate for run in runs.values()} == {2e-3} and asked.tuning is None
  counts = {
    arm: model_costs(program.build(run).model, run)["parameters"] for arm, run in runs.items()
  }
  standard = counts.pop("standard")
  assert (standard - 50_304 * 512) / 1e6 == pytest.approx(38.55, abs=0.005)
  assert {arm: count - standard for arm, count in counts.items()} == {
    "hc-static-n4": 576,
    "hc-dynamic-n4": 98_928 - 24 * 2 * 512,
    "mhc-n4": 1_188_493,
    "muddformer": 459_137,
    "mhar-h4": 25_600,
    "attnres-full": 25_600,
  }


def test_track3_has_the_sizes_and_rates_of_the_original():
  run = experiment.build(_load("configs.track3"))
  assert run.train.batch_size * run.data.seq_len == 524_288
  assert run.train.eval_rows * run.data.seq_len == 20 * 524_288
  assert run.decoder.scores.scale == pytest.approx(0.12)
  fast = run.decoder.rope_theta ** (-np.arange(32) / 32)
  np.testing.assert_allclose(fast, 1024 ** -np.linspace(0, 1, 32), rtol=1e-12)
  moved = run.optim.learning_rate * 0.2 * 768**0.5
  assert moved == pytest.approx(0.025)
  assert run.optim.learning_rate * run.optim.weight_decay == pytest.approx(0.025 * 0.05)
  dry_run(experiment.build(_load("configs.track3", "mhc")), Console(file=io.StringIO()))


def test_lns_rate_names_what_its_argument_may_be():
  for argument in ("24", "24,fast", "0.004"):
    with pytest.raises(ValueError, match=r"LAYERS,RATE|layers: one of"):
      lns_rate.get_config(argument)


@pytest.mark.parametrize("name", ["ablations.gated_residual", "tiny", "gpt2_124m", "llama_1p3b"])
def test_the_wide_mlp_has_as_many_parameters_as_gated_residual(name):
  config = _load(f"configs.{name}")
  config.mesh.update(data=-1, fsdp=1)
  if name == "tiny":  # a third site, and options of the combinator
    config.model.short_swa.window = 4
    config.model.residual.gated_residual.update(num_streams=2, rank=3, shared_gain=True)
  arms = dict(importlib.import_module("configs.ablations.gated_residual").sweep(config))
  assert arms["wide-mlp"]["model.mlp_dim"] > config.model.mlp_dim

  def parameters(arm):
    run = experiment.build(next(r.config for r in expand(config, arms.items()) if r.name == arm))
    return model_costs(program.build(run).model, run)["parameters"]

  wide, gated = parameters("wide-mlp"), parameters("gated_residual")
  assert wide == pytest.approx(gated, rel=0.002)
  if name == "ablations.gated_residual":
    assert gated - parameters("standard") == pytest.approx(13 * 384**2, rel=0.05)


def test_causal_shift_124m_confirms_what_the_argument_says():
  asked, made, runs = _planned("configs.ablations.causal_shift_124m", "channel,3,0.25,7")
  assert len(runs) * len(asked.seeds) == 20 and len(asked.contrasts) == 4
  assert 0 not in asked.seeds  # the seed of the first stage
  assert [*{arm.tokens for arm in made.arms.values()}] == [pytest.approx(10e9, rel=1e-4)]
  options = {arm: run.decoder.residual.options for arm, run in runs.items()}
  assert options["gate"]["granularity"] == "channel"
  assert (options["cut-best"]["layers"], options["cut-best"]["alpha"]) == ((3,), 0.25)
  assert (options["cut-last"]["layers"], options["cut-last"]["alpha"]) == ((-1,), 0.5)
  assert (options["cut-emergence"]["layers"], options["cut-emergence"]["alpha"]) == ((7,), 0.5)
  assert runs["standard"].train.eval_rows * runs["standard"].data.seq_len >= 10e6
  with pytest.raises(ValueError, match="GRANULARITY,LAYER,ALPHA,EMERGENCE"):
    _load("configs.ablations.causal_shift_124m", "gate")


@pytest.mark.parametrize("name", ["residuals", "compare"])
def test_has_every_combinator_with_its_defaults(name):
  module = importlib.import_module(f"configs.ablations.{name}")
  config = _load(f"configs.ablations.{name}")
  runs = {run.name: run.config for run in expand(config, module.sweep(config))}
  for name in combinators.names():
    residual = runs[name].model.residual
    assert residual.name == name
    assert residual[name].to_dict() == combinators.options(name)


def test_a_file_writes_and_reads_the_options_of_any_combinator():
  residual = base.get_config().model.residual
  assert [*residual] == ["name"]
  residual.gate.granularity = "token"
  residual["mhc"].update(num_streams=2)
  residual.update_from_flattened_dict({"highway.bias_init": -1.0})
  assert residual.to_dict() == {
    "name": "standard",
    "gate": combinators.options("gate") | {"granularity": "token"},
    "mhc": combinators.options("mhc") | {"num_streams": 2},
    "highway": combinators.options("highway") | {"bias_init": -1.0},
  }
  residual.lock()
  assert residual.copy_and_resolve_references().attenuation.alpha == 0.5
  with pytest.raises(TypeError, match="num_streams"):
    residual.hyper_connections.num_streams = "two"
  with pytest.raises(AttributeError, match=r"gaet is not a setting; did you mean 'gate'\?"):
    residual.gaet.granularity = "token"
  config = base.get_config()
  config.model.residual = {"name": "gate", "gate": {"kappa": 0.5}}
  assert experiment.build(config).decoder.residual.options["kappa"] == 0.5


def test_no_option_has_the_name_of_a_method_of_its_config():
  """A flag `--config.model.residual.NAME.keys=...` would ask for the method."""
  taken = [(name, key) for name in combinators.names() for key in combinators.options(name)]
  assert not [(name, key) for name, key in taken if hasattr(ConfigDict, key)]


def test_cut_layer_cuts_every_layer_once_per_alpha():
  module = importlib.import_module("configs.ablations.cut_layer")
  config = _load("configs.ablations.cut_layer")
  config.model.num_layers = 4  # as from the command line
  runs = expand(config, module.sweep(config))
  cuts = [run.overrides for run in runs if all(key in run.overrides for key in module.CURVES)]
  found = sorted((cut[module.CURVES[0]], cut[module.CURVES[1]]) for cut in cuts)
  assert found == [((layer,), alpha) for layer in range(4) for alpha in (0.0, 0.25, 0.5)]


def test_one_parent_goes_on_as_its_parent_did(tmp_path):
  parent = _load("configs.ablations.compare")
  parent.optim.update(learning_rate=0.02, b2=0.9, warmup_steps=50)
  parent.train.update(batch_size=24, steps=3000)
  (tmp_path / "run.json").write_text(json.dumps({"config": parent.to_dict()}))
  module = importlib.import_module("configs.ablations.one_parent")
  config = _load("configs.ablations.one_parent", str(tmp_path))
  config.model.num_layers = 4  # as from the command line
  assert (config.train.batch_size, config.train.init_from) == (24, str(tmp_path))
  assert (config.optim.learning_rate, config.optim.b2) == (0.002, 0.9)
  arms = {run.arm: run for run in expand(config, module.sweep(config))}
  asked = plan.questions(module.PLAN, list(arms))  # every planned arm is one
  assert len(asked.seeds) == 5 and parent.seed not in asked.seeds
  assert ("cut-last", "unchanged") in asked.contrasts
  cuts = [run.overrides[module.CURVES[0]] for run in arms.values() if "cut" in run.arm]
  assert cuts == [(0,), (1,), (2,), (3,)]
  assert arms["cut-last"].config.model.residual.attenuation.layers == (3,)
  assert all(f"gate-{name}" in arms for name in gate.GRANULARITIES)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ('{"model": {}, "data": {}}', "config.optim is missing, or no object"),
    ('{"model": {}, "data": {}, "optim": {"b1": "x"}, "train": {}}', "does not fit the settings"),
    ('{"model": {}, "data": {}, "optim": {}, "train": {}}', "does not fit .* 'batch_size'"),
  ],
)
def test_a_damaged_parent_is_named(tmp_path, text, words):
  (tmp_path / "run.json").write_text(f'{{"config": {text}}}')
  with pytest.raises(ValueError, match=words):
    _load("configs.ablations.one_parent", str(tmp_path))


# The tests of training run tiny.py.
@pytest.mark.parametrize(
  ("module", "argument"),
  [pytest.param(*b, marks=() if b[0] == "gpt2_124m" else pytest.mark.release) for b in BASES],
)
@pytest.mark.slow
def test_trains_two_steps_when_shrunk(module, argument, tmp_path):
  config = _load(f"configs.{module}", argument)
  source = write_folder(tmp_path / "text", make_texts(300))
  config.workdir = str(tmp_path / "run")
  config.model.update(num_layers=2, d_model=16, num_heads=2, num_kv_heads=1, mlp_dim=32)
  config.model.residual.block_attn_res.layers_per_block = 1
  config.data.update(root=str(tmp_path / "data"), seq_len=16)
  config.data.update(validation_fraction=0.1, test_fraction=0.1)
  for corpus in config.data.corpora.values():
    corpus.update(source=str(source), format="text")
  config.data.tokenizer.update(vocab_size=300, train_bytes=10_000)
  config.optim.warmup_steps = 1
  config.train.update(steps=2, batch_size=8 * config.train.microbatches, eval_rows=8)
  config.train.update(log_every=1, sample_tokens=0)
  run = experiment.build(config)
  with (tmp_path / "output").open("w") as output:
    train(run, Console(file=output))
  records = read_metrics(tmp_path / "run" / METRICS_FILE)
  losses = [r["train/loss"] for r in records if "train/loss" in r]
  assert len(losses) == 2 and all(4 < loss < 8 for loss in losses)  # log(300) = 5.7
  assert [r["step"] for r in records if "validation/loss" in r] == [0, 2]


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("{", "holds no JSON"),
    ("\xff", "holds no JSON"),
    ("[" * 100_000, "nested too deeply"),
    ("[]", "the value is a list: an object is allowed"),
    ("{}", "config.model is missing, or no object"),
    ('{"config": 3}', "config.model is missing, or no object"),
    ('{"config": {"model": {"num_layers": "x"}, "data": {}}}', "does not fit the settings of conf"),
    ('{"config": {"model": {"rope_scaling": 3}, "data": {}}}', "does not fit the settings of conf"),
  ],
)
def test_a_damaged_run_is_named_by_a_fine_tune(tmp_path, text, words):
  (tmp_path / "run.json").write_text(text, encoding="latin-1")
  with pytest.raises(ValueError, match=words) as caught:
    _load("configs.finetune", str(tmp_path))
  assert "run.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ('{"num_hidden_layers": 1000000000}', "num_hidden_layers is 1000000000: 1..10000 is allowed"),
    ('{"n_layer": "2"}', "n_layer is '2'"),
    ('{"n_layer": true}', "n_layer is True"),
    ("3", "the value is 3: expected object, got int"),
  ],
)
def test_a_damaged_folder_is_named_by_its_cuts(tmp_path, text, words):
  (tmp_path / "config.json").write_text(text)
  with pytest.raises(ValueError, match=words):
    _load("configs.ablations.finetune_cuts", str(tmp_path))
