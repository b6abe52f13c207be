"""Sums over the batches of a split, made up."""

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest

from resjax.losses import LossSums
from resjax.train import evaluate


class Stop:
  """A request to stop that comes after some ticks, if ever."""

  def __init__(self, after=math.inf):
    self.ticks, self.after = 0, after

  def tick(self):
    self.ticks += 1
    return self.ticks > self.after


def evaluated(monkeypatch, tokens, stop):
  """Batches of so many tokens, each with 2 nats, half a byte and a quarter right."""
  batches = [{"inputs": np.full(1, count, np.float32)} for count in tokens]
  monkeypatch.setattr(evaluate, "evaluation_batches", lambda *_, **__: iter(batches))
  layout = SimpleNamespace(rows=lambda size: range(size), put=lambda batch, size: batch)

  def eval_step(params, batch, token_bytes):
    (count,) = batch["inputs"]
    zero = np.float32(0)
    return LossSums(nats=2 * count, z=zero, tokens=count, bytes=count / 2, correct=count / 4)

  ledger = SimpleNamespace(phase=lambda name: contextlib.nullcontext())
  options = {"split": "validation", "batch_size": 8, "max_rows": 0}
  return evaluate.evaluate(eval_step, None, None, layout, None, stop, ledger, **options)


@pytest.mark.parametrize("tokens", [(5,), (5, 7), (5, 7, 90)])
def test_every_batch_counts_by_its_tokens(monkeypatch, tokens):
  seen = []
  monkeypatch.setattr(evaluate, "summary", seen.append)
  evaluated(monkeypatch, tokens, Stop())
  (sums,) = seen
  assert (sums.tokens, sums.nats, sums.correct) == (sum(tokens), 2 * sum(tokens), sum(tokens) / 4)


def test_figures_are_per_token_and_per_byte(monkeypatch):
  found = evaluated(monkeypatch, (5, 7), Stop())
  want = {"loss": 2.0, "bits_per_byte": 4 / math.log(2), "accuracy": 0.25}
  assert found == pytest.approx(want, rel=1e-6)


def test_a_request_to_stop_ends_it_without_figures(monkeypatch):
  stop = Stop(after=1)
  assert evaluated(monkeypatch, (5, 7, 9), stop) is None
  assert stop.ticks == 2
