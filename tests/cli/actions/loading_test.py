"""A run becomes a trained model: its parameters, its tokenizer, and text in its tokens."""

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from resjax.cli.actions import loading
from resjax.data.tokenizer import ByteTokenizer
from resjax.models.decoder import Decoder
from resjax.study.trained_model import TrainedModel
from tests.helpers import decoders, layouts, pretrained
from tests.helpers.losses import nats_per_token
from tests.helpers.runs import write_text
from tests.helpers.trained import STEPS, T, evaluations, run, settings

SMALL = decoders.shapes(decoders.config("gpt2", vocab_size=257))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
  root = write_text(tmp_path_factory.mktemp("models"))
  run(settings(root, root / "gated", "gate"))
  return root


@pytest.fixture(scope="module")
def trained(root):
  return loading.from_workdir(str(root / "gated"))


def loss(trained, text):
  return nats_per_token(trained.decoder, text.batches)


@pytest.mark.slow
def test_its_loss_on_its_validation_split_is_that_of_the_run(root, trained):
  assert trained.name == f"gated, step {STEPS}" and trained.seq_len == T
  assert trained.decoder.layout.mesh.size == 8
  text = loading.read_text(trained, str(root / "gated"), max_tokens=10**6)
  assert text.name == "gated, validation"
  assert text.batches[0]["inputs"].shape == (8, T)
  evaluated = evaluations(root / "gated")
  # The run evaluates 16 of the rows, cut from documents in another order.
  assert abs(loss(trained, text) - evaluated[-1]) < 0.1 < evaluated[0] - evaluated[-1]


@pytest.mark.slow
def test_a_checkpoint_on_one_device_gives_the_same(root, trained):
  layout = layouts.layout(devices=jax.devices()[:1])
  checkpoint = str(root / "gated" / "checkpoints" / str(STEPS))
  alone = loading.from_workdir(checkpoint, layout)
  assert alone.name == trained.name and alone.decoder.layout.mesh.size == 1
  text = loading.read_text(trained, str(root / "text"), max_tokens=300)
  assert text.num_tokens == 300 and text.name == str(root / "text")
  of_run = loading.read_text(trained, checkpoint, max_tokens=300)
  assert of_run.num_tokens == 300 and of_run.name == "gated, validation"
  np.testing.assert_allclose(loss(alone, text), loss(trained, text), rtol=1e-5)


@pytest.mark.parametrize(
  ("content", "words"), [("", "holds no text"), (" \n", "holds no text"), ("x", "is one token")]
)
def test_text_that_is_too_short(tmp_path, content, words):
  it = TrainedModel("it", SMALL, ByteTokenizer(), 32)
  (tmp_path / "short.txt").write_text(content)
  with pytest.raises(ValueError, match=rf"short\.txt {words}"):
    loading.read_text(it, str(tmp_path / "short.txt"), max_tokens=10)


def test_a_tokenizer_that_the_embedding_does_not_hold():
  small = decoders.shapes(decoders.config())  # 31 rows
  it = TrainedModel("it", SMALL, ByteTokenizer(), 32)
  with pytest.raises(ValueError, match="the tokenizer of it has 257 tokens, its embedding 31 rows"):
    dataclasses.replace(it, decoder=small)


def test_rows_longer_than_learned_positions():
  it = TrainedModel("it", SMALL, ByteTokenizer(), 32)
  with pytest.raises(ValueError, match=r"33 tokens are longer than the 32 learned .* --seq_len"):
    loading.read_text(it, "python-stdlib", max_tokens=10, seq_len=33)


def test_a_batch_divides_over_the_devices(tmp_path):
  layout = layouts.layout(data=4, fsdp=2)
  made = nnx.eval_shape(lambda: Decoder(SMALL.config, layout=layout, rngs=nnx.Rngs(0)))
  it = TrainedModel("it", made, ByteTokenizer(), 8)
  (tmp_path / "text.txt").write_text("the gate of a layer")
  for asked, rows in ((1, 8), (8, 8), (9, 16)):
    file = str(tmp_path / "text.txt")
    text = loading.read_text(it, file, max_tokens=99, batch_size=asked)
    assert {len(batch["inputs"]) for batch in text.batches} == {rows}


def test_no_checkpoint(tmp_path):
  message = re.escape(f"--checkpoint={str(tmp_path)!r} has no checkpoint")
  with pytest.raises(ValueError, match=message):
    loading.from_workdir(str(tmp_path))


@pytest.mark.slow
def test_data_that_are_no_longer_there(root, trained, tmp_path):
  (tmp_path / "run.json").write_text(
    (root / "gated" / "run.json").read_text().replace(str(root / "data"), "elsewhere")
  )
  with pytest.raises(ValueError, match=r"are not under config\.data\.root='elsewhere'"):
    loading.read_text(trained, str(tmp_path), max_tokens=10)


@pytest.mark.parametrize(
  "mesh", [{}, pytest.param({"data": 4, "fsdp": 2}, marks=pytest.mark.release)]
)
def test_a_hugging_face_folder(tmp_path, mesh):
  layout = layouts.layout(**mesh) if mesh else None
  folder = pretrained.folder(tmp_path, "gemma2")
  reference = np.load(folder / "reference.npz")
  it = loading.from_huggingface(str(folder), layout)
  assert (it.name, it.seq_len) == ("gemma2", it.decoder.config.max_positions)
  rows = reference["tokens"]
  logits = it.decoder.logits(it.decoder(rows))
  np.testing.assert_allclose(logits, reference["logits"], atol=1e-4)
  (tmp_path / "text.txt").write_text("the gate of a layer")
  text = loading.read_text(it, str(tmp_path / "text.txt"), max_tokens=100, seq_len=16)
  ids = it.tokenizer.encode_batch(["the gate of a layer"])[0]
  assert text.batches[0]["inputs"].shape == (8, 16)
  assert text.prefix == "gemma2: <s> (0) in front of texts, as its tokenizer's rules say"
  assert it.prompt("the gate of a layer").tolist() == [0, *ids]
  assert dataclasses.replace(it, bos="never").prompt("the gate of a layer").tolist() == ids.tolist()
  assert text.batches[0]["inputs"][0, : len(ids) + 1].tolist() == [0, *ids]


def test_a_folder_without_tokenizer(tmp_path):
  folder = pretrained.folder(tmp_path)
  (folder / "tokenizer.json").unlink()
  with pytest.raises(ValueError, match=r"llama has no tokenizer\.json"):
    loading.from_huggingface(str(folder))


def test_a_prompt_that_does_not_fit_into_a_row():
  it = TrainedModel("it", SMALL, ByteTokenizer(), 8)
  assert it.prompt("sevenby").tolist() == [256, *b"sevenby"]
  with pytest.raises(ValueError, match=r"^--corrupted is 8 tokens of it, whose rows have 8, what"):
    it.prompt("eight by", "--corrupted")
