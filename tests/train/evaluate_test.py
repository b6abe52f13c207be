"""Sums over the batches of a split, made up."""

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest

from resjax.losses import LossSums
from resjax.train import evaluate


class Stop(BaseException):
  """Ends an evaluation after a batch."""


def evaluated(monkeypatch, tokens, around_batch=contextlib.nullcontext):
  """Batches of so many tokens, each with 2 nats, half a byte and a quarter right."""
  batches = [{"inputs": np.full(1, count, np.float32)} for count in tokens]
  monkeypatch.setattr(evaluate, "evaluation_batches", lambda *_, **__: iter(batches))
  monkeypatch.setattr(evaluate, "task_of", lambda _: None)
  layout = SimpleNamespace(rows=np.arange, put=lambda batch, size: batch)

  def eval_step(params, batch, token_bytes):
    (count,) = batch["inputs"]
    zero = np.float32(0)
    return LossSums(nats=2 * count, z=zero, tokens=count, bytes=count / 2, correct=count / 4)

  options = {"batch_size": 8, "max_rows": 0}
  return evaluate.evaluate(eval_step, None, None, layout, None, around_batch, **options)


@pytest.mark.parametrize("tokens", [(5,), (5, 7), (5, 7, 90)])
def test_every_batch_counts_by_its_tokens(monkeypatch, tokens):
  seen = []
  monkeypatch.setattr(evaluate, "summary", seen.append)
  evaluated(monkeypatch, tokens)
  (sums,) = seen
  assert (sums.tokens, sums.nats, sums.correct) == (sum(tokens), 2 * sum(tokens), sum(tokens) / 4)


def test_figures_are_per_token_and_per_byte(monkeypatch):
  found = evaluated(monkeypatch, (5, 7))
  want = {"loss": 2.0, "bits_per_byte": 4 / math.log(2), "accuracy": 0.25}
  assert found == pytest.approx(want, rel=1e-6)


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
