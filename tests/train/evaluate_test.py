"""Sums over the batches of a split, made up."""

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest

from resjax.models.losses import LossSums
from resjax.train import evaluate


class Stop(BaseException):
  """Ends an evaluation after a batch."""


def evaluated(monkeypatch, tokens, around_batch=contextlib.nullcontext, **more):
  """Batches of so many tokens, each with 2 nats, half a byte and a quarter right.

  `more` has the tokens of batches of further corpora by name.
  """
  corpora = {"first": tokens} | more

  def batches(*_, corpus, **__):
    return iter([{"inputs": np.full(1, count, np.float32)} for count in corpora[corpus]])

  monkeypatch.setattr(evaluate, "evaluation_batches", batches)
  monkeypatch.setattr(evaluate, "task_of", lambda _: None)
  dataset = SimpleNamespace(corpora=corpora)
  layout = SimpleNamespace(rows=np.arange, put=lambda batch, size: batch)

  def eval_step(params, batch):
    (count,) = batch["inputs"]
    zero = np.float32(0)
    size = count / 2 if count < 100 else 2 * count
    return LossSums(nats=2 * count, z=zero, tokens=count, bytes=size, correct=count / 4)

  options = {"batch_size": 8, "max_rows": 0}
  return evaluate.evaluate(eval_step, None, dataset, layout, around_batch, **options)


@pytest.mark.parametrize("tokens", [(5,), (5, 7), (5, 7, 90)])
def test_every_batch_counts_by_its_tokens(monkeypatch, tokens):
  seen = []
  monkeypatch.setattr(evaluate, "summary", lambda sums: seen.append(sums) or {})
  evaluated(monkeypatch, tokens)
  (sums,) = seen
  assert (sums.tokens, sums.nats, sums.correct) == (sum(tokens), 2 * sum(tokens), sum(tokens) / 4)


def test_figures_are_per_token_and_per_byte(monkeypatch):
  found = evaluated(monkeypatch, (5, 7))
  want = {"loss": 2.0, "bits_per_byte": 4 / math.log(2), "accuracy": 0.25}
  assert found == pytest.approx(want, rel=1e-6)


def test_several_corpora_have_figures_of_their_own(monkeypatch):
  found = evaluated(monkeypatch, (5, 7), large=(1000, 500), small=(3,))
  bits = {"first": 4 / math.log(2), "large": 1 / math.log(2), "small": 4 / math.log(2)}
  for name, value in bits.items():
    assert found[f"bits_per_byte/{name}"] == pytest.approx(value, rel=1e-6)
  assert found["macro_bits_per_byte"] == pytest.approx(3 / math.log(2), rel=1e-6)
  whole = 2 * 1515 / (6 + 3000 + 1.5) / math.log(2)
  assert found["bits_per_byte"] == pytest.approx(whole, rel=1e-6)
  assert found["loss"] == pytest.approx(2.0)


def test_a_request_to_stop_ends_it_after_its_batch(monkeypatch):
  batches = []

  @contextlib.contextmanager
  def around_batch():
    yield
    batches.append(None)
    if len(batches) == 2:
      raise Stop

  with pytest.raises(Stop):
    evaluated(monkeypatch, (5, 7, 9), around_batch)
  assert len(batches) == 2
