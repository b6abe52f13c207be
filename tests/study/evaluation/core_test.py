"""CORE on a small folder in its format, against a loop over questions; prompts against the word."""

import json
import math
import random

import numpy as np
import pytest

from resjax.data.tokenizer import ByteTokenizer
from resjax.study.evaluation import Scored
from resjax.study.evaluation.core import _prompts, _Question, _Task, core
from resjax.study.trained_model import TrainedModel
from tests.helpers import decoders
from tests.study.evaluation.scorer_test import expected

LONGEST = 128
TASKS = {
  "pick": ("multiple_choice", 2, 25.0), "who": ("schema", 0, 50.0),
  "say": ("language_modeling", 1, 0.0),
}  # fmt: skip
WORDS = ["depth", "width", "layer", "token", "gate", "norm"]


@pytest.fixture(scope="module")
def decoder():
  return decoders.decoder(decoders.config("llama", vocab_size=257, max_positions=LONGEST))


@pytest.fixture
def folder(tmp_path):
  rng = random.Random(0)

  def word():
    return rng.choice(WORDS)

  made = {
    "pick": [
      {"query": f"{word()}:", "choices": [word() + str(n) for n in range(4)], "gold": n % 4}
      for n in range(7)
    ],
    "who": [
      {"context_options": [f"a {word()}", "the gate"], "continuation": word(), "gold": n % 2}
      for n in range(7)
    ],
    "say": [{"context": f" {word()} ", "continuation": word()[0]} for n in range(7)],
  }
  (tmp_path / "eval_data" / "sub").mkdir(parents=True)
  lines = ["Eval Task,Task Type,Random baseline"]
  tasks = []
  for label, (kind, shots, baseline) in TASKS.items():
    uri = f"sub/{label}.jsonl"
    text = "".join(json.dumps(line) + "\n" for line in made[label])
    (tmp_path / "eval_data" / uri).write_text(text)
    tasks.append({"label": label, "dataset_uri": uri, "num_fewshot": [shots]})
    tasks[-1] |= {"icl_task_type": kind}
    lines.append(f"{label},x,{baseline}")
  tasks[0]["continuation_delimiter"] = "\nAnswer: "
  (tmp_path / "core.yaml").write_text(json.dumps({"icl_tasks": tasks}))
  (tmp_path / "eval_meta_data.csv").write_text("\n".join(lines))
  return tmp_path


def by_hand(decoder, folder, label):
  """The share of right answers, one question at a time; every prompt is written out here."""
  path = folder / "eval_data" / "sub" / f"{label}.jsonl"
  data = [json.loads(line) for line in path.read_text().splitlines()]
  random.Random(1337).shuffle(data)
  right = 0
  for number, item in enumerate(data):
    others = [n for n in range(len(data)) if n != number]
    shots = [data[n] for n in random.Random(1234 + number).sample(others, TASKS[label][1])]
    if label == "pick":
      front = "".join(f"{s['query']}\nAnswer: {s['choices'][s['gold']]}\n\n" for s in shots)
      front += f"{item['query']}\nAnswer: "
      same = len(front) + len(common(item["choices"]))
      losses = [np.mean(row(decoder, front + choice)[0][same:]) for choice in item["choices"]]
      right += int(np.argmax(losses)) == item["gold"]
    elif label == "who":
      ends = [f" {item['continuation']}"] * 2
      whole = [c + e for c, e in zip(item["context_options"], ends, strict=True)]
      same = len(common([text[::-1] for text in whole]))
      right += (
        int(np.argmax([np.mean(row(decoder, text)[0][-same:]) for text in whole])) == (item["gold"])
      )
    else:
      front = "".join(f"{s['context'].strip()} {s['continuation']}\n\n" for s in shots)
      front += item["context"].strip()
      right += bool(row(decoder, f"{front} {item['continuation']}")[1][len(front) :].all())
  return right / len(data)


def row(decoder, text):
  return expected(decoder, Scored([256, *text.encode()]))


def common(texts):
  found = ""
  for letters in zip(*texts, strict=False):
    if len(set(letters)) > 1:
      break
    found += letters[0]
  return found


@pytest.mark.slow
def test_equals_a_loop_over_questions(decoder, folder):
  found = core(TrainedModel("it", decoder, ByteTokenizer(), LONGEST), folder)
  assert set(found.tasks) == set(TASKS)
  for label, result in found.tasks.items():
    assert result.accuracy == pytest.approx(by_hand(decoder, folder, label)), label
    assert result.questions == 7 and result.num_fewshot == TASKS[label][1]
    base = TASKS[label][2] / 100
    assert result.centered == pytest.approx((result.accuracy - base) / (1 - base))
    spread = math.sqrt(result.accuracy * (1 - result.accuracy) / 6) / (1 - base)
    assert result.stderr == pytest.approx(spread)
  assert found.core == pytest.approx(np.mean([r.centered for r in found.tasks.values()]))
  errors = [r.stderr**2 for r in found.tasks.values()]
  assert found.stderr == pytest.approx(math.sqrt(sum(errors)) / 3)
  fewer = core(TrainedModel("it", decoder, ByteTokenizer(), LONGEST), folder, limit=3)
  assert {result.questions for result in fewer.tasks.values()} == {3}


def test_prompts():
  task = _Task("say", "", [1], "language_modeling")
  questions = [
    _Question(context=" one ", continuation="two"),
    _Question(context="a", continuation="b"),
  ]
  assert _prompts(task, questions, 0) == ["a b\n\none", "a b\n\none two"]
  task = _Task("who", "", [1], "schema", ", ")
  questions = [
    _Question(context_options=["x", "y"], continuation="z", gold=1),
    _Question(context_options=["p", "q"], continuation="r", gold=0),
  ]
  assert _prompts(task, questions, 1) == ["y, z\n\np, r", "y, z\n\nq, r"]


@pytest.mark.parametrize(
  "name, text, message",
  [
    ("core.yaml", None, "core.yaml is missing; give the folder eval_bundle of CORE"),
    ("core.yaml", "{", "core.yaml holds no YAML"),
    ("core.yaml", "icl_tasks: []", "names no task"),
    ("core.yaml", "tasks: []", "icl_tasks"),
    ("eval_meta_data.csv", "a,b\n1,2", "needs the columns 'Eval Task' and 'Random baseline'"),
    ("eval_meta_data.csv", "Eval Task,Random baseline\n", "has no line for the task 'pick'"),
    (
      "eval_meta_data.csv",
      "Eval Task,Random baseline\npick,100\n",
      "'Random baseline' of pick is 100",
    ),
    ("eval_meta_data.csv", "Eval Task,Random baseline\npick,nan\n", "must be in percent, from 0"),
    ("eval_data/sub/pick.jsonl", None, "pick.jsonl is missing"),
    ("eval_data/sub/pick.jsonl", "\n", "holds no question"),
    ("eval_data/sub/pick.jsonl", "{}", "gold=0 must be one of its 0 options"),
    ("eval_data/sub/pick.jsonl", "no", "line 1 holds no JSON"),
    ("eval_data/sub/say.jsonl", '{"context": "a"}', "the continuation is empty or missing"),
  ],
)
def test_damaged_folders_are_named(decoder, folder, name, text, message):
  if text is None:
    (folder / name).unlink()
  else:
    (folder / name).write_text(text)
  with pytest.raises(ValueError, match=message) as raised:
    core(TrainedModel("it", decoder, ByteTokenizer(), LONGEST), folder)
  assert "\n" not in str(raised.value)


def test_names_stay_in_the_folder(decoder, folder):
  settings = json.loads((folder / "core.yaml").read_text())
  settings["icl_tasks"][0]["dataset_uri"] = "../x.jsonl"
  (folder / "core.yaml").write_text(json.dumps(settings))
  with pytest.raises(ValueError, match="dataset_uri of pick"):
    core(TrainedModel("it", decoder, ByteTokenizer(), LONGEST), folder)
