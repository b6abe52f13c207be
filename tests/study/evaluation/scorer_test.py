"""Scores of rows of many lengths, against a float64 softmax of the logits of each row alone."""

import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.study.evaluation import Scored, Scorer
from tests.helpers import decoders, layouts

V, LONGEST = 32, 200
LENGTHS = (2, 3, 50, 65, 66, 130, 129, 201, 7)


def config(residual="standard", **changes):
  return decoders.config("llama", residual, vocab_size=V, max_positions=256, **changes)


def rows(lengths=LENGTHS, seed=0):
  rng = np.random.default_rng(seed)
  return [Scored(rng.integers(0, V, length), int(rng.integers(1, length))) for length in lengths]


@nnx.jit
def all_logits(decoder, tokens):
  return decoder.logits(decoder(tokens))


def expected(decoder, row):
  """Log p and greedy flags of a row that runs alone, whole and without padding."""
  tokens = np.asarray(row.tokens)
  logits = np.asarray(all_logits(decoder, tokens[None, :-1])[0], np.float64)[row.first - 1 :]
  targets = tokens[row.first :]
  top = logits.max(-1)
  log_p = logits[np.arange(len(targets)), targets] - top
  log_p -= np.log(np.exp(logits - top[:, None]).sum(-1))
  return log_p, logits.argmax(-1) == targets


def assert_close(found, wanted, atol=1e-4):  # nats, of float32 models
  assert len(found) == len(wanted)
  for scores, (log_probs, greedy) in zip(found, wanted, strict=True):
    np.testing.assert_allclose(scores.log_probs, log_probs, rtol=0, atol=atol)
    np.testing.assert_array_equal(scores.greedy, greedy)
    assert scores.log_prob == pytest.approx(np.sum(log_probs, dtype=np.float64), abs=atol)


def as_pairs(found):
  return [(scores.log_probs, scores.greedy) for scores in found]


@pytest.fixture(scope="module")
def decoder():
  return decoders.decoder(config())


@pytest.fixture(scope="module")
def scored(decoder):
  return Scorer(decoder, max_length=LONGEST, batch_size=2).score(rows())


def test_equals_a_softmax_of_each_row_alone(decoder, scored):
  assert_close(scored, [expected(decoder, row) for row in rows()])
  assert [len(scores.log_probs) for scores in scored] == [
    len(row.tokens) - row.first for row in rows()
  ]
  assert scored[0].log_probs.dtype == np.float32 and scored[0].greedy.dtype == bool


@pytest.mark.parametrize("chunk_size", [1, 7, 1000])  # which holds all
@pytest.mark.slow
def test_the_size_of_chunks_changes_nothing(decoder, scored, chunk_size):
  found = Scorer(decoder, max_length=LONGEST, batch_size=2, chunk_size=chunk_size).score(rows())
  assert_close(found, as_pairs(scored))


def test_neither_order_nor_neighbours_change_a_bit(decoder, scored):
  scorer = Scorer(decoder, max_length=LONGEST, batch_size=2)
  mine, order = rows(), np.random.default_rng(1).permutation(len(LENGTHS))
  shuffled = scorer.score([mine[i] for i in order] + rows(seed=5))
  alone = [scorer.score([row])[0] for row in mine]
  for place, number in enumerate(order):
    for other in (shuffled[place], alone[number]):
      np.testing.assert_array_equal(other.log_probs, scored[number].log_probs)
      np.testing.assert_array_equal(other.greedy, scored[number].greedy)


@pytest.mark.parametrize("batch_size", [1, 16])
@pytest.mark.slow
def test_the_batch_size_changes_nothing(decoder, scored, batch_size):
  found = Scorer(decoder, max_length=LONGEST, batch_size=batch_size).score(rows())
  assert_close(found, as_pairs(scored))


@pytest.mark.parametrize(
  "name, mesh",
  [
    pytest.param("fsdp_tp", {}, marks=pytest.mark.release),
    pytest.param("fsdp_tp", {"fsdp": 2, "tensor": 2}, marks=pytest.mark.release),
    ("long_context", {"data": 2, "tensor": 2, "sequence": 2}),
  ],
)
@pytest.mark.slow
def test_eight_devices_equal_one(scored, name, mesh):
  sharded = decoders.decoder(config(), layout=layouts.layout(name, **mesh))
  found = Scorer(sharded, max_length=LONGEST, batch_size=2).score(rows())
  assert_close(found, as_pairs(scored))


def test_one_program_for_each_bucket(decoder):
  scorer = Scorer(decoder, max_length=LONGEST, batch_size=2)
  assert [scorer.bucket(length) for length in (1, 64, 65, 128, 129, 200)] == [
    64, 64, 96, 128, 192, 200,
  ]  # fmt: skip
  assert [scorer.rows_of(size) for size in (64, 96, 200)] == [6, 4, 2]
  scorer.score(rows())
  scorer.score(rows(seed=3) * 3)
  assert scorer.programs == {64, 96, 128, 192, 200}
  assert scorer._run._cache_size() == 5


@pytest.mark.parametrize(
  "tokens, first, message",
  [
    ([1], 1, r"row 1 has 1 tokens, of which those from 1 on .* at most 201 tokens"),
    ([1, 2], 0, "those from 0 on"),
    ([1, 2], 2, "allowed: at least one"),
    ([1] * 202, 1, "row 1 has 202 tokens"),
    ([1, V], 1, f"row 1 holds {V}, which is no token of the model; allowed: 0..{V - 1}"),
    ([1, -1], 1, "row 1 holds -1"),
  ],
)
def test_wrong_rows_are_refused(decoder, tokens, first, message):
  with pytest.raises(ValueError, match=message):
    Scorer(decoder, max_length=LONGEST).score([Scored([1, 2]), Scored(tokens, first)])


def test_wrong_sizes_are_refused(decoder):
  with pytest.raises(ValueError, match="max_length=0 and batch_size=8 must be at least 1"):
    Scorer(decoder, max_length=0)
  learned = decoders.shapes(decoders.config("gpt2", max_positions=16))
  with pytest.raises(ValueError, match="max_length=17 is more than the 16 learned positions"):
    Scorer(learned, max_length=17)


def test_no_row_gives_no_score(decoder):
  assert Scorer(decoder, max_length=LONGEST).score([]) == []


# The quick ones: `deep_delta` mixes neighbouring tokens, and `attn_res` keeps all sources.
QUICK = ("standard", "deep_delta", "attn_res")
ALL = [
  name if name in QUICK else pytest.param(name, marks=pytest.mark.release)
  for name in combinators.names()
]


@pytest.mark.parametrize("residual", ALL)
@pytest.mark.slow
def test_every_combinator_scores_a_row_as_if_it_were_alone(residual):
  decoder = decoders.decoder(config(residual))
  some = rows((9, 64, 40))
  wanted = [expected(decoder, row) for row in some]
  for batch_size in (1, 8):
    found = Scorer(decoder, max_length=64, batch_size=batch_size).score(some)
    assert_close(found, wanted)
