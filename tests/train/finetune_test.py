"""Fine-tunes from Hugging Face folders: the first loss is the pretrained model's."""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from configs import base, finetune
from resjax import combinators
from resjax.cli.actions import loading
from resjax.data import dataset
from resjax.data.pipeline import evaluation_batches
from resjax.interop import huggingface
from resjax.models.config import ResidualConfig
from resjax.models.model_def import ModelDef
from resjax.train import experiment
from resjax.train.runs import init_from, parents
from tests.helpers import decoders, gguf_files, layouts, pretrained
from tests.helpers.losses import nats_per_token
from tests.helpers.runs import start, write_text
from tests.helpers.trained import evaluations, run

T, B = 32, 8


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
  return write_text(tmp_path_factory.mktemp("finetune"))


def settings(root, folder, name=None, **train):
  """What `resjax train --config=configs/finetune.py:FOLDER` runs, on a small corpus."""
  c = finetune.get_config(str(folder))
  c.lock()
  c.workdir = str(root / f"{Path(folder).name}-{name}")
  c.model.residual.name = name or c.model.residual.name
  c.data.update(root=str(root / "data"), seq_len=T, validation_fraction=0.2)
  c.data.corpora.stdlib.source = str(root / "text")
  c.optim.warmup_steps = 1
  c.train.update(steps=1, batch_size=B, eval_rows=16, sample_tokens=0, **train)
  return c


@pytest.mark.parametrize(
  ("family", "name", "options"),
  [
    pytest.param("gemma2", "standard", {}, marks=pytest.mark.release),
    ("gemma2", "gate", {"granularity": "channel"}),
    ("gpt2", "attenuation", {"layers": (1,), "alpha": 1.0}),
    pytest.param("gpt_neox", "gate", {}, marks=pytest.mark.release),
    pytest.param("gemma3", "gate", {}, marks=pytest.mark.release),
    pytest.param("olmo3", "gate", {}, marks=pytest.mark.release),
  ],
)
def test_neutral_init_continues_the_pretrained_model(root, tmp_path, family, name, options):
  folder = pretrained.folder(tmp_path, family)
  built = experiment.build(settings(root, folder, name))
  data = dataset.build(built.data)
  residual = ResidualConfig(name, combinators.options(name) | options)
  decoder = dataclasses.replace(built.with_vocab_size(data.vocab_size).decoder, residual=residual)
  layout = layouts.layout(devices=jax.devices()[:1])
  model = ModelDef(decoder, layout)
  params, inheritance = init_from.start(
    parents.find(str(folder)), model, seed=0, tokenizer=data.tokenizer
  )
  assert all(path.startswith("combinator/") for path in inheritance.new)
  text = loading.read_text(
    loading.from_huggingface(str(folder)), str(root / "text"), max_tokens=200, seq_len=T
  )
  want = nats_per_token(huggingface.load(folder, layout=layout), text.batches)
  assert nats_per_token(model.bind(params), text.batches) == pytest.approx(want, rel=1e-6)


@pytest.mark.slow
def test_the_trainer_starts_with_its_loss(root, tmp_path):
  folder = pretrained.folder(tmp_path, "gpt2")  # 96 learned positions, of which 32 are used
  config = settings(root, folder, "gate")
  printed = run(config)
  assert f"starting from {folder}: " in printed and "the function is the parent's" in printed
  data = dataset.build(experiment.build(config).data)
  rows = list(evaluation_batches(data, "validation", batch_size=B, max_rows=16))
  want = nats_per_token(huggingface.load(folder, layout=layouts.layout()), rows)
  first, last = evaluations(Path(config.workdir))
  assert first == pytest.approx(want, rel=1e-6) and last != first
  # Resumed and loaded without the folder.
  shutil.move(folder, tmp_path / "gone")
  again = loading.from_workdir(config.workdir)
  assert again.decoder.combinator.num_parameters() == 6 and again.tokenizer.vocab_size == 61
  assert again.decoder.config.max_positions == T


def test_what_a_cut_changes_is_told(root, tmp_path):
  folder = pretrained.folder(tmp_path, "llama")
  config = settings(root, folder, "attenuation")
  config.model.rope_theta = 5.0
  built = experiment.build(config)
  layout = layouts.layout(devices=jax.devices()[:1])
  model = ModelDef(built.with_vocab_size(pretrained.V).decoder, layout)
  reasons = init_from.changes(parents.find(str(folder)), model, built)
  assert reasons == [
    "config.model.rope_theta was 10000.0 and is 5.0",
    "'attenuation' with these options is not what 'standard' with its options is",
  ]


def test_an_exported_folder_goes_on_with_its_own_combinator(root, tmp_path):
  options = {"layers_per_block": 2, "num_heads": 2, "views": "qk_v"}
  sizes = {"vocab_size": pretrained.V, "max_positions": T, "value_residual": "learned"}
  theirs = decoders.decoder(decoders.config("llama", "block_attn_res", options, **sizes))
  folder = tmp_path / "exported"
  tokenizer = huggingface.tokenizer(pretrained.folder(tmp_path))
  huggingface.export(theirs, folder, tokenizer=tokenizer)
  built = experiment.build(settings(root, folder))
  assert built.decoder.residual == theirs.config.residual
  data = dataset.build(built.data)
  model = ModelDef(built.decoder, layouts.layout(devices=jax.devices()[:1]))
  parent = parents.find(str(folder))
  assert init_from.changes(parent, model, built) == []
  params, inheritance = init_from.start(parent, model, seed=0, tokenizer=data.tokenizer)
  assert not inheritance.new
  jax.tree.map(np.testing.assert_array_equal, params, nnx.to_pure_dict(nnx.state(theirs)))
  other = experiment.build(settings(root, folder, "gate")).decoder
  assert other.residual.name == "gate" and other.value_residual == "learned"


def test_settings_that_no_folder_has(root, tmp_path):
  folder = pretrained.folder(tmp_path, "llama")
  config = settings(root, folder, "gate")
  config.train.init_from = str(tmp_path)
  message = f" is not set, and config.train.init_from={str(tmp_path)!r} is no Hugging Face folder"
  with pytest.raises(ValueError, match=r"config\.model\.\w+" + re.escape(message)) as error:
    experiment.build(config)
  assert "\n" not in str(error.value)


def test_settings_of_a_folder_to_ignore(root, tmp_path):
  folder = pretrained.folder(tmp_path, "smollm3")
  want = huggingface.read_config(folder)
  path = folder / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_ratio": 3}))
  config = settings(root, folder, "gate")
  with pytest.raises(ValueError, match=r"rope_ratio=3 is not known .*config\.train\.hf_ignore"):
    experiment.build(config)
  config.train.hf_ignore = ("rope_ratio",)
  built = experiment.build(config)
  assert built.decoder.layer_ropes == want.layer_ropes
  parent = parents.find(str(folder), built.train.hf_ignore)
  assert parent.shapes(built.decoder) and parent.identity(built.decoder)


def test_another_tokenizer_than_the_folders(root, tmp_path):
  folder = pretrained.folder(tmp_path, "llama")
  built = experiment.build(settings(root, folder, "gate"))
  data = dataset.build(built.data)
  pretrained.tokenizer(40).save(str(folder / "tokenizer.json"))
  model = ModelDef(built.with_vocab_size(61).decoder, layouts.layout(devices=jax.devices()[:1]))
  with pytest.raises(ValueError, match=r"the tokenizer of .*llama is not that of this run"):
    init_from.start(parents.find(str(folder)), model, 0, data.tokenizer)


def test_a_run_is_gone_on_with_too(root, tmp_path):
  """Model, data and row length of a record; its combinator is chosen anew."""
  record = {"model": base.model(), "data": base.data()}
  record["model"] |= {"windows": [4, 0], "num_layers": 3}
  record["model"]["residual"]["name"] = "mhc"
  record["data"]["seq_len"] = 77
  (tmp_path / "run.json").write_text(json.dumps({"config": record}))
  for given in (tmp_path, tmp_path / "checkpoints" / "20"):
    config = finetune.get_config(str(given))
    assert config.model.windows == (4, 0) and config.model.num_layers == 3
    assert config.data.seq_len == 77 and config.model.residual.name == "standard"
    assert config.train.init_from == str(given)
    assert config.workdir == f"runs/finetune_{tmp_path.name}"


def test_a_model_in_the_folder_of_a_run_is_no_checkpoint_of_it(tmp_path):
  """WORKDIR/NAME/FILE.gguf has the depth in WORKDIR that WORKDIR/checkpoints/STEP has."""
  (tmp_path / "run.json").write_text(json.dumps({"config": {"model": base.model(), "data": {}}}))
  (tmp_path / "export").mkdir()
  file = gguf_files.write(tmp_path / "export" / "small.gguf", "llama")
  config = finetune.get_config(str(file))
  assert config.model.num_layers is None and config.data.tokenizer.folder == str(file)
  assert config.workdir == "runs/finetune_small"


def test_a_folder_that_is_nothing_to_start_from(tmp_path):
  command = [sys.executable, "-m", "launch.train", f"--config=configs/finetune.py:{tmp_path}"]
  process = start(command)
  output, _ = process.communicate(timeout=120)
  assert process.returncode == 1 and output.count("\n") == 1, output
  assert f"{tmp_path} is no Hugging Face folder (it has no config.json), no workdir" in output


def test_positions_beyond_the_learned_ones(root, tmp_path):
  config = settings(root, pretrained.folder(tmp_path, "gpt2"), "standard")
  config.data.seq_len = 128
  built = experiment.build(config).with_vocab_size(61)
  model = ModelDef(built.decoder, layouts.layout(devices=jax.devices()[:1]))
  theirs = parents.find(config.train.init_from).shapes(built.decoder)
  ours = {path: leaf.shape for path, leaf in parents.flat(model.abstract).items()}
  with pytest.raises(ValueError, match=r"embed/positions is \(96, 24\) there"):
    init_from.match(theirs, ours)
  assert np.prod(ours["embed/positions"]) == 128 * 24
