"""Figures equal those of lm-evaluation-harness, its own task definitions, on the same files.

Run where lm-eval, torch and transformers are installed; elsewhere this is skipped. The model and
the texts are made up unless these are set, for a pretrained model on the published files:

  RESJAX_MODEL   a folder of a pretrained model
  RESJAX_TEXTS   a folder with wiki.test.raw and lambada_openai.jsonl
  RESJAX_LIMIT   so many pages, and ten times as many passages; default: 2
"""

import json
import os
import pathlib
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from resjax.interop import huggingface
from resjax.study.evaluation import corpora
from resjax.study.evaluation.texts import perplexity
from resjax.study.trained_model import TrainedModel

pytestmark = pytest.mark.slow

MODEL, TEXTS = os.environ.get("RESJAX_MODEL"), os.environ.get("RESJAX_TEXTS")
LIMIT = int(os.environ.get("RESJAX_LIMIT", "2"))
L = 1024 if MODEL else 48
WORDS = ["depth", "width", "layer", '"', "(", ")", "'s", "@-@", "@,@", ".", ",", "=", "N", "token"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A GPT-2 with random parameters and a byte-level tokenizer, as transformers saves them."""
  pytest.importorskip("lm_eval")
  torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
  if MODEL:
    return pathlib.Path(MODEL)
  place = tmp_path_factory.mktemp("gpt2")
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    special_tokens=["<|endoftext|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(["depth width layer token source = ( ) ."] * 20, trainer)
  size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id("<|endoftext|>")
  torch.manual_seed(0)
  config = transformers.GPT2Config(
    vocab_size=size, n_positions=64, n_embd=32, n_layer=2, n_head=2,
    bos_token_id=end, eos_token_id=end, initializer_range=0.3,
  )  # fmt: skip
  transformers.GPT2LMHeadModel(config).save_pretrained(place)
  tokenizer.save(str(place / "tokenizer.json"))
  named = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
  settings = named | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": L}
  (place / "tokenizer_config.json").write_text(json.dumps(settings))
  return place


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Made-up corpora in the original formats: a page per row, and a passage per row."""
  place, draw = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
  pages = []
  for number in range(12):
    lines = [" ".join(draw.choice(WORDS, int(draw.integers(1, 60)))) for _ in range(4)]
    pages.append(f" = Title {number} = \n \n " + " \n ".join(lines) + " \n")
  passages = [" ".join(draw.choice(WORDS, int(draw.integers(2, 90)))) for _ in range(30)]
  passages += ["Alone", "two  spaces", "é ü"]
  if TEXTS:
    pages, passages = published(pathlib.Path(TEXTS))
  pq.write_table(pa.table({"page": pages}), place / "test-00000-of-00001.parquet")
  rows = [json.dumps({"text": text}) + "\n" for text in passages]
  (place / "lambada_test_en.jsonl").write_text("".join(rows))
  return place


def published(texts):
  """The first pages of WikiText-2, cut before first headings, and passages of LAMBADA."""
  raw = (texts / "wiki.test.raw").read_text(encoding="utf-8")
  starts = [m.start() for m in re.finditer(r"^ = [^=\n]+ = $", raw, re.MULTILINE)]
  pages = [raw[a:b] for a, b in zip(starts, [*starts[1:], len(raw)], strict=True)]
  lines = (texts / "lambada_openai.jsonl").read_text(encoding="utf-8").splitlines()
  return pages[:LIMIT], [json.loads(line)["text"] for line in lines[: 10 * LIMIT]]


@pytest.fixture(scope="module")
def theirs(folder, files, tmp_path_factory):
  """What the harness finds with its own tasks, whose data alone are replaced by local files."""
  import lm_eval
  from lm_eval.models.huggingface import HFLM
  from lm_eval.tasks import TaskManager

  tasks = pathlib.Path(lm_eval.__file__).parent / "tasks"
  own = tmp_path_factory.mktemp("tasks")
  for name, kind, file in (
    ("wikitext", "parquet", "test-00000-of-00001.parquet"),
    ("lambada/lambada_openai", "json", "lambada_test_en.jsonl"),
  ):
    task = name.split("/")[-1]
    settings = {
      "include": str(tasks / (name if "/" in name else f"{name}/{name}")) + ".yaml",
      "task": f"{task}_here",
      "tag": None,
      "dataset_path": kind,
      "dataset_name": None,
      "dataset_kwargs": {"data_files": {"test": str(files / file)}},
      "training_split": None,
      "validation_split": None,
    }
    (own / f"{task}.yaml").write_text(json.dumps(settings))  # JSON is YAML
  manager = TaskManager(include_path=str(own), include_defaults=False)
  results, samples = {}, {}
  # Where a tokenizer puts a token before a text by itself, the harness puts a second one before a
  # page and counts it as a target, unless it is told that there is none.
  for task, adds in (("wikitext_here", False), ("lambada_openai_here", None)):
    model = HFLM(
      pretrained=str(folder), device="cpu", dtype="float64", max_length=L, batch_size=1,
      logits_cache=False, add_bos_token=adds,
    )  # fmt: skip
    found = lm_eval.simple_evaluate(
      model, tasks=[task], task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    results |= found["results"]
    samples |= found["samples"]
  return results, samples


@pytest.fixture(scope="module")
def ours(folder, files):
  tokenizer = huggingface.tokenizer(folder)
  bos = "auto" if MODEL else "never"
  model = TrainedModel("ours", huggingface.load(folder), tokenizer, L, bos=bos)
  found = corpora.parse(
    [f"wikitext={files}/*.parquet", f"lambada_openai={files / 'lambada_test_en.jsonl'}"]
  )
  return perplexity([model], found)


@pytest.mark.parametrize(
  ("task", "name"),
  [
    ("wikitext", "word_perplexity"),
    ("wikitext", "byte_perplexity"),
    ("wikitext", "bits_per_byte"),
    ("lambada_openai", "perplexity"),
    ("lambada_openai", "acc"),
  ],
)
def test_metrics(ours, theirs, task, name):
  found = ours.figures["ours", task][name].value
  np.testing.assert_allclose(found, theirs[0][f"{task}_here"][f"{name},none"], rtol=1e-5)


def test_log_likelihoods_of_documents(ours, theirs):
  for measured in ours.measured:
    samples = sorted(theirs[1][f"{measured.corpus.name}_here"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(measured.ids)
    worst = 0.0
    for sample, row in zip(samples, measured.table, strict=True):
      answer = sample["filtered_resps"][0]
      want = answer[0] if isinstance(answer, tuple | list) else answer
      assert abs(-row[0] - want) < 1e-3, (sample["doc_id"], row, want)
      worst = max(worst, abs(-row[0] - want))
    print(measured.corpus.name, len(measured.ids), f"worst difference {worst:.1e} nats")
