"""The requests of lm-evaluation-harness, and the cases in which it or its backends go wrong."""

import json

import numpy as np
import pytest

from tests.helpers import decoders, layouts, tasks
from tests.study.evaluation.scorer_test import ALL, expected

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from resjax.interop.lm_eval import LanguageModel, run_tasks
from resjax.study.evaluation import Scored
from resjax.study.trained_model import TrainedModel

L = 32
CONFIG = decoders.config("llama", vocab_size=64, max_positions=64)


@pytest.fixture(scope="module")
def decoder():
  return decoders.decoder(CONFIG)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "bos"])
def words(request):
  return tasks.tokenizer(request.param)


def instances(kind, arguments):
  return [Instance(kind, {}, given, n) for n, given in enumerate(arguments)]


def model(decoder, words, seq_len=L, bos="auto", **options):
  return LanguageModel(
    TrainedModel("it", decoder, words, seq_len, bos), **{"batch_size": 2} | options
  )


@pytest.fixture
def rows(monkeypatch):
  """All rows that are scored."""
  from resjax.study.evaluation.scorer import Scorer

  seen, score = [], Scorer.score

  def recorded(self, given):
    seen.extend((list(row.tokens), row.first) for row in given)
    return score(self, given)

  monkeypatch.setattr(Scorer, "score", recorded)
  return seen


PAIRS = [
  ("depth width", " layer"), ("depth", " width layer"), ("depth width ", "layer"),
  ("", "token"), ("  ", "gate"), ("gate gate gate norm", " a b c"), ("query: ", "norm."),
]  # fmt: skip


def test_pairs_are_scored_as_the_decoder_alone_scores_them(decoder, words, rows):
  harness = model(decoder, words)
  found = harness.loglikelihood(instances("loglikelihood", PAIRS), disable_tqdm=True)
  for (context, continuation), (log_p, greedy), (tokens, first) in zip(
    PAIRS, found, rows, strict=True
  ):
    assert harness.text.decode(tokens[first:]).strip() == continuation.strip()
    before = harness.text.decode(tokens[:first]).strip()
    assert before == context.strip()
    own, best = expected(decoder, Scored(tokens, first))
    assert log_p == pytest.approx(own.sum(), abs=1e-4)
    assert greedy == bool(best.all())
  # Equal contexts and continuations but for the last token, with another split.
  assert rows[0][0] == rows[1][0] and rows[0][1] != rows[1][1]
  assert found[0][0] != pytest.approx(found[1][0], abs=0.1)


def test_no_row_begins_twice(decoder, rows):
  words = tasks.tokenizer(True)
  for bos in ("auto", "always", "never"):
    harness = model(decoder, words, bos=bos)
    harness.loglikelihood(
      instances("loglikelihood", [*PAIRS, ("<s> depth", " a"), ("", "<s> gate"), ("<s>", " a")]),
      disable_tqdm=True,
    )
    harness.loglikelihood_rolling(instances("rolling", [("depth " * 40,), ("<s> depth width",)]))
  assert len(rows) > 30
  assert all(tokens[:2] != [0, 0] for tokens, _ in rows)


def test_the_rule_for_the_first_token(decoder):
  for bos, begins in (("auto", True), ("always", True), ("never", False)):
    text = model(decoder, tasks.tokenizer(True), bos=bos).text
    assert (text.encode("gate")[0] == 0) == begins
    assert text.encode("gate", begin=False)[0] != 0
  plain = model(decoder, tasks.tokenizer(False))
  assert plain.text.encode("gate")[0] > 1 and plain.prefix_token_id == 1
  assert model(decoder, tasks.tokenizer(False), bos="always").text.encode("gate")[0] == 1
  with pytest.raises(ValueError, match="bos='yes' is unknown; allowed: auto, always, never"):
    model(decoder, tasks.tokenizer(False), bos="yes")


def test_a_continuation_that_merges_into_the_context_is_its_last_token(decoder, rows):
  harness = model(decoder, tasks.tokenizer(False))
  text = harness.text
  # A token of two letters, where the one letter is a token, too: context and whole are as long.
  whole = next(text.decode([n]) for n in range(60, 2, -1) if len(text.decode([n]).strip()) == 2)
  assert len(text.encode(whole)) == len(text.encode(whole[0])) == 1
  pairs = [("gate: " + whole[0], whole[1]), (whole[0], whole[1])]
  found = harness.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
  assert harness.counts.merged == 2
  context = text.encode("gate: " + whole[0])
  assert rows == [(context, len(context) - 1), ([1, *text.encode(whole[0])], 1)]
  assert all(log_p < 0 for log_p, _ in found)


def test_empty_texts_are_certain(decoder, words, rows):
  given = instances("loglikelihood", [("gate", ""), ("", ""), ("gate", " norm")])
  found = model(decoder, words).loglikelihood(given, disable_tqdm=True)
  assert found[:2] == [(0.0, True)] * 2 and found[2][0] < 0
  assert len(rows) == 1
  assert model(decoder, words).loglikelihood_rolling(instances("rolling", [("",)])) == [0.0]


def test_a_continuation_that_is_too_long_is_refused(decoder, words):
  with pytest.raises(ValueError, match=r"has \d+ tokens, but rows have max_length=32"):
    model(decoder, words).loglikelihood(
      instances("loglikelihood", [("gate", " depth" * 40)]), disable_tqdm=True
    )


@pytest.mark.parametrize("length", [1, L - 1, L, L + 1, 3 * L + 5])
def test_every_token_of_a_text_is_scored_once(decoder, words, rows, length):
  harness = model(decoder, words)
  tokens = (harness.text.encode("depth width layer token: norm. ", begin=False) * length)[:length]
  windows = harness._windows(tokens)
  scored = [token for _, _, part in windows for token in part]
  assert scored == tokens
  log_p = sum(part for part, _ in harness._loglikelihood_tokens(windows))
  total = 0.0
  for start in range(0, length, L):
    # The first window begins with the prefix; the last one is filled up with what comes before it.
    end = min(start + L, length)
    before = tokens[end - L - 1 : start] if start else [harness.prefix_token_id]
    total += expected(decoder, Scored([*before, *tokens[start:end]], len(before)))[0].sum()
  assert log_p == pytest.approx(total, abs=1e-3)
  assert harness.counts.tokens == length


def many():
  import random

  rng = random.Random(3)
  pairs = [
    (tasks.text(rng, rng.randint(1, 9)), " " + tasks.text(rng, rng.randint(1, 3)))
    for _ in range(24)
  ]
  return instances("loglikelihood", pairs)


def answers(decoder, words, requests, **options):
  harness = model(decoder, words, **{"seq_len": 64} | options)
  return [
    (np.array([log_p]), np.array([greedy]))
    for log_p, greedy in harness.loglikelihood(requests, disable_tqdm=True)
  ]


def test_batches_order_and_devices_change_nothing(decoder, words):
  requests = many()
  base = answers(decoder, words, requests, batch_size=8)
  order = np.random.default_rng(0).permutation(len(requests))
  for batch_size in (1, 64):
    found = answers(decoder, words, requests, batch_size=batch_size)
    assert_pairs(found, base)
  shuffled = answers(decoder, words, [requests[n] for n in order], batch_size=8)
  for place, number in enumerate(order):
    np.testing.assert_array_equal(shuffled[place][0], base[number][0])
  sharded = decoders.decoder(CONFIG, layout=layouts.layout("fsdp_tp", fsdp=2, tensor=2))
  assert_pairs(answers(sharded, words, requests, batch_size=8), base)


def assert_pairs(found, wanted):
  for (log_p, greedy), (other, other_greedy) in zip(found, wanted, strict=True):
    np.testing.assert_allclose(log_p, other, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(greedy, other_greedy)


@pytest.mark.parametrize("residual", ALL)
def test_every_combinator_answers_alike_in_any_batch(residual):
  config = decoders.config("llama", residual, vocab_size=64, max_positions=64)
  decoder, words = decoders.decoder(config), tasks.tokenizer(True)
  prompts = [("depth",), ("depth width layer token: norm gate",), ("a b",)]
  options = {"until": ["\n"], "max_gen_toks": 8}
  given = instances("generate_until", [(*prompt, options) for prompt in prompts])
  texts, scores = [], []
  for batch_size in (1, 4):
    harness = model(decoder, words, seq_len=64, batch_size=batch_size)
    texts.append(harness.generate_until(given))
    scores.append(harness.loglikelihood(many()[:6], disable_tqdm=True))
  assert texts[0] == texts[1]
  np.testing.assert_allclose(*scores, rtol=0, atol=1e-4)


def greedy_text(decoder, text, prompt, until, count):
  """What a loop over whole rows gives: one more token at a time, and a look at the whole text."""
  tokens, new = list(prompt), []
  while len(new) < count:
    logits = decoder.logits(decoder(np.array([tokens])))[0, -1]
    tokens.append(int(logits.argmax()))
    if tokens[-1] in text.stop_ids:
      break
    new.append(tokens[-1])
    decoded = text.decode(new)
    if any(stop in decoded for stop in until):
      return min((decoded.split(stop)[0] for stop in until), key=len)
  return text.decode(new)


@pytest.mark.parametrize("until", [["\n"], ["e", "th q"], [" "], []])
def test_continuations_equal_a_loop_over_whole_rows(decoder, words, until):
  harness = model(decoder, words, seq_len=64, batch_size=2)
  prompts = ["depth", "width layer token:", "gate"]
  options = {"until": until, "max_gen_toks": 10}
  given = instances("generate_until", [(prompt, options) for prompt in prompts])
  found = harness.generate_until(given)
  assert found == [
    greedy_text(decoder, harness.text, harness.text.encode(prompt), until, 10) for prompt in prompts
  ]


def test_sampling_is_a_choice_of_the_task(decoder, words):
  harness = model(decoder, words, seq_len=64)

  def texts(**options):
    given = instances("generate_until", [("depth", {"max_gen_toks": 12} | options)])
    return harness.generate_until(given)

  assert texts() == texts(do_sample=False, temperature=0.7) == texts(do_sample=True, top_k=1)
  assert texts(do_sample=True, temperature=50.0) != texts()
  with pytest.raises(ValueError, match=r"num_beams=4, which is not supported; allowed: until"):
    texts(num_beams=4)
  with pytest.raises(ValueError, match="64 new tokens leave no room for a prompt in rows of 64"):
    texts(max_gen_toks=64)


def test_a_long_prompt_loses_its_beginning(decoder, words):
  harness = model(decoder, words, seq_len=20)
  long, tail = "norm " * 30 + "depth width", None
  options = {"until": [], "max_gen_toks": 4}
  [found] = harness.generate_until(instances("generate_until", [(long, options)]))
  tail = harness.text.encode(long)[-16:]
  assert found == greedy_text(decoder, harness.text, tail, [], 4)
  assert harness.counts.truncated == 1


def test_chats(decoder, words):
  harness = model(decoder, words)
  asked = [{"role": "user", "content": " depth? "}, {"role": "model", "content": "width"}]
  begin = "<s>" if harness.text.begins else ""
  assert harness.apply_chat_template(asked[:1]) == f"{begin}user: depth?\nmodel: "
  going_on = harness.apply_chat_template(asked, add_generation_prompt=False)
  assert going_on == f"{begin}user: depth?\nmodel: width"
  # A template without system messages is given the others.
  system = {"role": "system", "content": "be short"}
  assert harness.apply_chat_template([system, *asked[:1]]) == f"{begin}user: depth?\nmodel: "
  assert harness.chat_template(True) == tasks.CHAT and harness.chat_template() is None
  assert harness.tok_encode(harness.apply_chat_template(asked[:1]))[:2] != [0, 0]


def test_one_of_several_templates(decoder, tmp_path):
  words = tasks.tokenizer(True)
  settings = json.loads(words.files["tokenizer_config.json"])
  named = [{"name": "default", "template": tasks.CHAT}, {"name": "short", "template": "Q"}]
  files = words.files | {"tokenizer_config.json": json.dumps(settings | {"chat_template": named})}
  several = type(words)(files, words.vocab_size, words.ids)
  folder = tasks.write(tmp_path / "own")
  options = {"tasks_folder": folder, "limit": 1, "bootstrap_iters": 0}
  it = TrainedModel("it", decoder, several, 64)
  found = run_tasks(it, ["last_word"], apply_chat_template="short", **options)
  assert found["samples"]["last_word"][0]["arguments"][0][0] == "Q"
  with pytest.raises(ValueError, match="no chat template 'long'; allowed: default, short"):
    run_tasks(it, ["last_word"], apply_chat_template="long", **options)


def test_a_tokenizer_without_chats(decoder):
  words = tasks.tokenizer(True)
  files = {name: text for name, text in words.files.items() if name == "tokenizer.json"}
  bare = type(words)(files, words.vocab_size, words.ids)
  with pytest.raises(ValueError, match=r"has no chat template .* leave out --apply_chat_template"):
    run_tasks(TrainedModel("it", decoder, bare, L), ["choice"], apply_chat_template=True)


def test_tasks_of_a_folder(decoder, words, tmp_path):
  folder = tasks.write(tmp_path / "own")
  it = TrainedModel("it", decoder, words, 64)
  options = {"tasks_folder": folder, "limit": 4, "num_fewshot": 1, "apply_chat_template": True}
  found = run_tasks(it, list(tasks.NAMES), **options)
  assert set(found["results"]) == set(tasks.NAMES)
  assert found["counts"]["tokens"] > 100 and found["counts"]["programs"] <= 8
  assert found["n-shot"]["choice"] == 1
  assert "user: " in found["samples"]["choice"][0]["arguments"][0][0]


def test_unknown_tasks_are_named(decoder, words, tmp_path):
  folder = tasks.write(tmp_path / "own")
  with pytest.raises(ValueError, match="chioce: no such task of lm-evaluation-harness; set"):
    run_tasks(TrainedModel("it", decoder, words, L), ["choice", "chioce"], tasks_folder=folder)


@pytest.mark.parametrize(
  ("changes", "words_of_error"),
  [
    ({"doc_to_text": "{{question"}, r"choice\.yaml: TemplateSyntaxError: unexpected end"),
    ({"test_split": "none"}, r"choice\.yaml: KeyError: 'none'"),
    ({"doc_to_text": "!function mine.fail"}, r"mine\.py:2: KeyError: 'k'"),
    ({"metadata": "["}, r"choice\.yaml:1 is no YAML: "),
  ],
)
def test_files_of_tasks_that_fail_are_named(decoder, tmp_path, changes, words_of_error):
  folder = tasks.write(tmp_path / "own")
  (folder / "mine.py").write_text("def fail(document):\n  return {}['k']\n")
  file = folder / "choice.yaml"
  text = json.dumps(json.loads(file.read_text()) | changes)
  for plain in ("!function mine.fail", "["):  # a YAML tag, and a bracket that nothing closes
    text = text.replace(f'"{plain}"', plain)
  file.write_text(text)
  with pytest.raises(ValueError, match=words_of_error):
    it = TrainedModel("it", decoder, tasks.tokenizer(True), L)
    run_tasks(it, ["choice"], tasks_folder=folder)


def test_the_end_of_texts_that_older_folders_name_beside_their_settings():
  from resjax.interop.lm_eval.task_tokenizer import TaskTokenizer

  words = tasks.tokenizer(True)
  files = {**words.files, "special_tokens_map.json": json.dumps({"eos_token": "</s>"})}
  files["tokenizer_config.json"] = json.dumps({"bos_token": "<s>"})
  made = TaskTokenizer(type(words)(files, words.vocab_size, {"eos_token_id": [0, 1]}))
  assert made.stop_ids == (1, 0)
