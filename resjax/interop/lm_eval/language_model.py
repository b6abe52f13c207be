"""A decoder as a model of lm-evaluation-harness."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from resjax.interop.lm_eval.task_tokenizer import TaskTokenizer
from resjax.study import TrainedModel
from resjax.study.evaluation import Generator, Lockstep, Scored, Scorer

# A request as the harness gives it on: its texts, the tokens of the context, and the scored ones.
_Request = tuple[tuple[str, str] | None, list[int], list[int]]

_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_OPTIONS = ("until", "do_sample", "temperature", "top_k", "top_p", *_NEW_TOKENS)


@dataclasses.dataclass
class Counts:
  """What has been asked of a model.

  Attributes:
    tokens: how many tokens were scored.
    merged: how many continuations were empty, because their text is part of the last token of the
      context; that token was scored instead.
    truncated: how many rows lost the beginning of their context, which was too long.
  """

  tokens: int = 0
  merged: int = 0
  truncated: int = 0


class LanguageModel(TemplateLM):
  """Answers the requests of lm-evaluation-harness with a trained model.

  Args:
    model: the model, whose `seq_len` is the most tokens of a row; see `TaskTokenizer` for `bos`.
    batch_size: the number of rows of `seq_len` tokens that run at a time.
    max_gen_toks: the most tokens of a continuation where a task does not say it.

  Attributes:
    lockstep: runs the work of process 0 in all processes.
    counts: what has been asked so far.
    scorer: gives the log-likelihoods.
    generator: gives the continuations.
    text: makes tokens of texts.
    template: the name of the template of chats; None: the only one, or that named `default`.

  Raises:
    ValueError: an argument is out of range.
  """

  def __init__(self, model: TrainedModel, *, batch_size: int = 8, max_gen_toks: int = 256):
    super().__init__()
    self.text, self.max_length = TaskTokenizer(model.tokenizer, model.bos), model.seq_len
    self.batch_size, self.max_gen_toks = batch_size, max_gen_toks
    self.counts = Counts()
    self.template: str | None = None
    sizes = {"max_length": model.seq_len, "batch_size": batch_size}
    self.scorer, self.generator = Scorer(model.decoder, **sizes), Generator(model.decoder, **sizes)

    def score(rows: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
      found = self.scorer.score([Scored(*row) for row in rows])
      return [(scores.log_prob, bool(np.all(scores.greedy))) for scores in found]

    def continued(prompts: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
      return self.generator.generate(prompts, **options)

    self.lockstep = Lockstep({"score": score, "generate": continued})

  @property
  def eot_token_id(self) -> int:
    """The token that ends a text."""
    return self.text.stop_ids[0]

  @property
  def prefix_token_id(self) -> int:
    """The token that stands for an empty context."""
    return self.text.prefix_id

  @property
  def tokenizer_name(self) -> str:
    """What tells tokenizers apart in a cache of requests."""
    return self.text.digest

  def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
    """Returns the tokens of a text, see `TaskTokenizer.encode`."""
    return self.text.encode(string, begin=add_special_tokens)

  def chat_template(self, chat_template: bool | str = False) -> str | None:
    """Returns the template of chats, which may be asked for by name."""
    if not chat_template:
      return None
    return self.text.chat_template(chat_template if isinstance(chat_template, str) else None)

  def apply_chat_template(
    self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
  ) -> str:
    """Returns a chat as one text; without its system message where the template has none."""
    try:
      return self._chat(chat_history, add_generation_prompt)
    except ValueError:
      others = [message for message in chat_history if message["role"] != "system"]
      if len(others) == len(chat_history):
        raise
      return self._chat(others, add_generation_prompt)

  def _chat(self, messages: list[dict[str, str]], answer_next: bool) -> str:
    return self.text.chat(messages, answer_next=answer_next, template=self.template)

  def loglikelihood(
    self, requests: list[Instance], disable_tqdm: bool = False
  ) -> list[tuple[float, bool]]:
    """Returns log p of each continuation, given its context, and whether all of it is greedy.

    An empty text is certain: its log p is 0.
    """
    full = [request for request in requests if request.args[1]]
    found = iter(super().loglikelihood(full, disable_tqdm=disable_tqdm))
    return [next(found) if request.args[1] else (0.0, True) for request in requests]

  def loglikelihood_rolling(
    self, requests: list[Instance], disable_tqdm: bool = False
  ) -> list[float]:
    """Returns log p of each text, given the prefix token.

    A text that is too long is cut into windows; from the second on they begin with the last token
    of the one before, and score all others.
    """
    windows: list[_Request] = []
    counts = []
    for request in requests:
      own = self._windows(self.text.encode(request.args[0], begin=False))
      windows += own
      counts.append(len(own))
    found = iter(self._loglikelihood_tokens(windows))
    sums = [sum(next(found)[0] for _ in range(count)) for count in counts]
    for request, log_prob in zip(requests, sums, strict=True):
      self.cache_hook.add_partial("loglikelihood_rolling", request.args, log_prob)
    return sums

  def _windows(self, tokens: list[int]) -> list[_Request]:
    if tokens[:1] == [self.prefix_token_id]:  # the text spells it itself
      tokens = tokens[1:]
    rolling = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
    return [(None, *make_disjoint_window(window)) for window in rolling]

  def _loglikelihood_tokens(
    self, requests: Sequence[_Request], **_: Any
  ) -> list[tuple[float, bool]]:
    rows = [self._row(*request) for request in requests]
    answers = self.lockstep.call("score", rows)
    for (texts, _tokens, _scored), answer in zip(requests, answers, strict=True):
      if texts is not None:
        self.cache_hook.add_partial("loglikelihood", texts, answer)
    return answers

  def _row(
    self, texts: tuple[str, str] | None, context: list[int], continuation: list[int]
  ) -> tuple[list[int], int]:
    """Returns the tokens of a row, and the index of the first one that is scored."""
    if not continuation:
      self.counts.merged += 1
      context, continuation = context[:-1], context[-1:]
    context = context or [self.prefix_token_id]
    if len(continuation) > self.max_length:
      raise ValueError(
        f"a continuation has {len(continuation)} tokens, but rows have max_length="
        f"{self.max_length}: {'' if texts is None else texts[1][:60]!r}; set max_length above that"
      )
    tokens = [*context, *continuation]
    kept = tokens[-self.max_length - 1 :]
    self.counts.truncated += len(kept) < len(tokens)
    self.counts.tokens += len(continuation)
    return kept, len(kept) - len(continuation)

  def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
    """Returns a continuation of each context, up to the first of its stop texts.

    Raises:
      ValueError: a task asks for an option that there is none of.
    """
    groups: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
      groups.setdefault(repr(request.args[1]), []).append(number)
    texts: dict[int, str] = {}
    for numbers in groups.values():
      found = self._generated([requests[n].args[0] for n in numbers], requests[numbers[0]].args[1])
      texts |= dict(zip(numbers, found, strict=True))
    for number, request in enumerate(requests):
      self.cache_hook.add_partial("generate_until", request.args, texts[number])
    return [texts[number] for number in range(len(requests))]

  def _generated(self, contexts: list[str], asked: dict[str, Any]) -> list[str]:
    """Returns a continuation of each context with the same options."""
    until, options = self._options(asked)
    prompts = [self.text.encode(context) or [self.prefix_token_id] for context in contexts]
    room = self.max_length - options["num_tokens"]
    self.counts.truncated += sum(len(prompt) > room for prompt in prompts)
    options["stop"] = self.text.ending_ids(until)
    rows = self.lockstep.call("generate", prompts, options)
    texts = []
    for row in rows:
      ended = row[-1:] and row[-1] in self.text.stop_ids
      text = self.text.decode(row[:-1] if ended else row)
      # A stop text may lie across tokens, so it is looked for in the whole.
      ends = [text.find(stop) for stop in until if stop and stop in text]
      texts.append(text[: min(ends, default=len(text))])
    return texts

  def _options(self, asked: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Returns the stop texts, and the options of `Generator.generate` that a task asks for."""
    unknown = [name for name in asked if name not in _OPTIONS]
    if unknown:
      raise ValueError(
        f"generation_kwargs has {unknown[0]}={asked[unknown[0]]!r}, which is not supported; "
        f"allowed: {', '.join(_OPTIONS)}"
      )
    until = asked.get("until") or []
    until = [until] if isinstance(until, str) else list(until)
    given = [asked[name] for name in _NEW_TOKENS if asked.get(name) is not None]
    temperature = float(asked.get("temperature") or 0.0)
    sampled = asked.get("do_sample", temperature > 0)
    return [*until, self.text.end_text], {
      "num_tokens": int(given[0] if given else self.max_gen_toks),
      "temperature": (temperature or 1.0) if sampled else 0.0,
      "top_k": int(asked.get("top_k") or 0) if sampled else 0,
      "top_p": float(asked.get("top_p") or 1.0) if sampled else 1.0,
    }
