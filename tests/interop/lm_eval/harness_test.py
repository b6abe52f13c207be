"""Every request and metric equals that of lm-evaluation-harness with torch and transformers.

  pip install 'resjax[eval]' torch transformers accelerate

The models are those of the golden folders, written by `huggingface.export`; in float32, and with
`logits_cache=False`, because the cache of the harness gives wrong answers for some requests.
"""

import json

import numpy as np
import pytest

from resjax.interop import huggingface
from resjax.study.trained_model import TrainedModel
from tests.golden.huggingface import make
from tests.helpers import tasks

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("transformers")

MAX_LENGTH = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tasks.write(tmp_path_factory.mktemp("tasks") / "own")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


def theirs(place, names, folder, **options):
  import transformers
  from lm_eval.models.huggingface import HFLM
  from lm_eval.tasks import TaskManager

  # transformers gives a folder of Qwen2 that family's own way to split texts, whatever its
  # tokenizer.json says; this class does what the file says.
  words = transformers.PreTrainedTokenizerFast.from_pretrained(place)
  model = HFLM(
    str(place), tokenizer=words, device="cpu", dtype="float32", batch_size=4, logits_cache=False,
    max_length=MAX_LENGTH, **options,
  )  # fmt: skip
  return lm_eval.simple_evaluate(
    model, tasks=names, task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    torch_random_seed=None, random_seed=1234, numpy_random_seed=1234, fewshot_random_seed=1234,
    bootstrap_iters=0,
  )  # fmt: skip


def ours(decoder, words, names, folder, **options):
  from resjax.interop.lm_eval import run_tasks

  model = TrainedModel("it", decoder, words, MAX_LENGTH)
  return run_tasks(model, names, tasks_folder=folder, bootstrap_iters=0, **options)


def answers(results, name):
  """What the model said to each request of a task."""
  samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
  return [
    (request[:2] if name != "continue" else request[0], answer)
    for sample in samples
    for request, answer in zip(sample["arguments"], sample["resps"], strict=True)
  ]


def assert_equal(found, wanted, name):
  """The difference between log-likelihoods; greedy flags, generated texts and metrics are equal."""
  own, others = answers(found, name), answers(wanted, name)
  assert len(own) == len(others) > 10
  worst = 0.0
  for (text, mine), (other_text, other) in zip(own, others, strict=True):
    assert text == other_text
    mine, other = mine[0], other[0]
    if isinstance(other, str):
      assert mine == other, text
      continue
    pairs = (mine, other) if isinstance(other, tuple | list) else ([mine], [other])
    worst = max(worst, abs(float(pairs[0][0]) - float(pairs[1][0])))
    assert list(pairs[0][1:]) == list(pairs[1][1:]), text
  assert worst <= 1e-3
  for metric, value in wanted["results"][name].items():
    if isinstance(value, float) and np.isfinite(value):
      assert found["results"][name][metric] == pytest.approx(value, rel=1e-5), metric
  return worst


@pytest.mark.parametrize("bos", [False, True], ids=["plain", "bos"])
@pytest.mark.parametrize("family", make.MODELS)
def test_equals_the_harness_with_transformers(family, bos, folder, tmp_path):
  words = tasks.tokenizer(bos)
  decoder = huggingface.load(make.FOLDER / family)
  huggingface.export(decoder, tmp_path / "model", tokenizer=words)
  # Their rolling windows of a tokenizer that begins texts start with that token twice.
  others = [name for name in tasks.NAMES if not bos or name != "roll"]
  wanted = theirs(tmp_path / "model", others, folder)
  if bos:
    rolled = theirs(tmp_path / "model", ["roll"], folder, add_bos_token=False)
    wanted["samples"] |= rolled["samples"]
    wanted["results"] |= rolled["results"]
  found = ours(decoder, words, list(tasks.NAMES), folder)
  worst = {name: assert_equal(found, wanted, name) for name in tasks.NAMES}
  print(family, {name: f"{value:.1e}" for name, value in worst.items()}, found["counts"])


TEMPLATES = [
  "{% for m in messages %}{{ bos_token if loop.first }}{{ m.role }}: {{ m.content | trim }}\n"
  "{% endfor %}{% if add_generation_prompt %}model: {% endif %}",
  "{%- for m in messages %}\n  {%- if m.role == 'user' %}\n[I] {{ m.content }} [/I]\n"
  "  {%- else %}\n{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}\n"
  "  {%- endif %}\n{%- endfor %}",
  "{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}{{ m | tojson }};"
  "{% endfor %}{% if add_generation_prompt %}>{% endif %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("answer_next", [True, False])
def test_chats_equal_those_of_transformers(template, answer_next, tmp_path):
  import transformers

  from resjax.interop.lm_eval.task_tokenizer import TaskTokenizer

  words = tasks.tokenizer(True)
  settings = json.loads(words.files["tokenizer_config.json"]) | {"chat_template": template}
  files = words.files | {"tokenizer_config.json": json.dumps(settings)}
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
  mine = TaskTokenizer(type(words)(files, words.vocab_size, words.ids))
  chat = [{"role": "user", "content": " depth <é> "}, {"role": "assistant", "content": "width "}]
  if "tojson" in template and not answer_next:
    return  # what goes on would stand inside a JSON text
  wanted = theirs.apply_chat_template(
    chat, tokenize=False, add_generation_prompt=answer_next, continue_final_message=not answer_next
  )
  found = mine.chat(chat, answer_next=answer_next)
  assert found == wanted
  assert mine.encode(found, begin=False) == theirs.encode(wanted, add_special_tokens=False)
