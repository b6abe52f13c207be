"""The shift of rows for which it is known."""

import dataclasses

import numpy as np
import pytest

from resjax.study.analysis import shift
from resjax.study.analysis.alignment import ESTIMATES, Estimate
from resjax.study.analysis.shift import RANK_RATIO, Compared, Rows, balanced_shifts, shifts

P, ROWS = 7, 40
RANDOM = 0.01  # the probability of a random token


def rows(means, noise=0.0, seed=0, num_rows=ROWS):
  """Returns rows of 10 tokens each whose probabilities have these means along depth.

  Minus the log-ranks are ten times the probabilities.
  """
  means = np.asarray(means, float)[:, None] + np.zeros((1, num_rows))
  means = means + noise * np.random.default_rng(seed).normal(size=means.shape)
  return Rows({"probability": 10 * means, "log_rank": 100 * means}, np.full(num_rows, 10.0))


def found(target, this, measure="probability", noise=0.0, num_rows=ROWS, **options):
  """Returns the shift of these means along depth."""
  chance = rows(np.full(len(target), RANDOM), num_rows=num_rows)
  given = rows(target, noise, 0, num_rows), rows(this, noise, 1, num_rows)
  return shifts(Compared(*given, chance, chance), **options)[measure]


def steps(before, after, place):
  """Returns means along depth that change at a place, which may be the end."""
  return [before] * place + [after] * (P - place)


def exactly(index, share=1.0):
  return Estimate(index, index, index, share)


@pytest.mark.parametrize("measure", ["probability", "log_rank"])
def test_departure_and_emergence_are_found_at_every_place(measure):
  for lost in range(P + 1):
    for emerges in range(P):
      one = found(steps(RANDOM, 0.4, emerges), steps(0.9, RANDOM, lost), measure)
      assert one.departure == (exactly(lost) if lost < P else exactly(None, 0.0))
      assert one.onset == one.emergence == one.completion == exactly(emerges)
      wanted = exactly(max(emerges - lost, 0)) if lost < P else exactly(None, 0.0)
      assert one.unread == wanted
      crossing = max(lost, emerges) if lost < P else None
      assert one.crossing == exactly(crossing, float(lost < P))
      assert one.unread_crossing == exactly(None, 0.0)


def test_shares_of_what_the_target_has_in_the_end():
  rising = [RANDOM + share for share in (0.0, 0.02, 0.05, 0.11, 0.19, 0.2, 0.2)]
  one = found(rising, steps(0.9, RANDOM, 1))
  assert [getattr(one, name).index for name in ("onset", "emergence", "completion")] == [1, 3, 4]


def test_both_tokens_are_read_by_the_same_threshold():
  """The end of the target is 0.4 above chance, so that 0.2 above chance is read, whose ever."""
  for above, read in ((0.199, False), (0.201, True)):
    one = found(steps(RANDOM + above, RANDOM + 0.4, 6), steps(RANDOM + above, RANDOM, 6))
    assert (one.departure.index, one.emergence.index) == ((6, 0) if read else (0, 6))


def test_what_does_not_last_does_not_count():
  fickle = [RANDOM, 0.4, RANDOM, 0.4, 0.4, 0.4, 0.4]
  assert found(fickle, steps(0.9, RANDOM, 1)).emergence.index == 3
  again = [0.9, RANDOM, 0.9, RANDOM, RANDOM, RANDOM, RANDOM]
  assert found(steps(RANDOM, 0.4, 5), again).departure.index == 3
  assert found(steps(RANDOM, 0.4, 5), [*again[:-1], 0.9]).departure == exactly(None, 0.0)


def test_two_lost_tokens_cross_unread():
  """As in large models: the target is ahead from 2 on, and has half of its end from 5 on."""
  target = [0.01, 0.02, 0.04, 0.05, 0.06, 0.3, 0.4]
  one = found(target, [0.9, 0.05, 0.03, 0.03, 0.02, 0.02, 0.02])
  assert (one.departure.index, one.emergence.index, one.unread.index) == (1, 5, 4)
  assert one.crossing == exactly(None, 0.0) and one.unread_crossing == exactly(2)


@pytest.mark.parametrize("measure", ["probability", "log_rank"])
def test_nothing_is_claimed_of_a_target_no_better_than_a_random_token(measure):
  """Its mean rank must be at most RANK_RATIO of the random one's, and its probability larger."""
  edge = -np.log(RANK_RATIO) / 10
  for above, known in ((edge - 1e-9, False), (edge + 1e-9, True), (-0.005, False)):
    one = found(steps(RANDOM, RANDOM + above, 3), steps(0.9, RANDOM, 2), measure)
    assert one.emergence == (exactly(3) if known else exactly(None, 0.0))
    assert one.departure == (exactly(2) if known else exactly(None, 0.0))
    if not known:
      assert {getattr(one, name) for name in ESTIMATES} == {exactly(None, 0.0)}


def test_a_measure_without_chance_is_compared_with_zero():
  given = [Rows({**r.sums, "cosine": 10 * r.sums["probability"]}, r.tokens)
           for r in (rows(steps(0, 0.4, 3)), rows(steps(0.9, 0, 2)))]  # fmt: skip
  chance = rows(np.full(P, RANDOM))
  one = shifts(Compared(*given, chance, chance))["cosine"]
  assert (one.departure.index, one.emergence.index) == (2, 3)


def test_the_interval_covers_what_rows_differ_in_and_is_the_same_again():
  rising, falling = RANDOM + np.linspace(0, 0.4, P), RANDOM + np.linspace(0.5, 0, P)
  one = found(rising, falling, noise=0.15)
  for name in ("departure", "emergence"):
    estimate = getattr(one, name)
    assert estimate.lower < estimate.upper and estimate.lower <= estimate.index <= estimate.upper
  assert one == found(rising, falling, noise=0.15)
  assert (one.level, one.num_bootstrap) == (0.95, 1000)
  narrow = found(rising, falling, noise=0.15, level=0.01).emergence
  assert narrow.upper - narrow.lower < one.emergence.upper - one.emergence.lower


@pytest.mark.parametrize("num_rows", [8, 16])
def test_intervals_cover_the_truth_in_95_of_100_texts(num_rows):
  """Rows of 200 made-up texts; the truth lies at positions 4, 12, 8, and 13 less 5."""
  depth = np.arange(20)
  target, this = 0.3 / (1 + np.exp(-(depth - 12.3) / 2)), 0.8 / (1 + np.exp((depth - 3.4) / 2))
  end = target[-1] / 2
  truth = {
    "departure": np.argmax(this < end),
    "emergence": np.argmax(target >= end),
    "unread": np.argmax(target >= end) - np.argmax(this < end),
  }
  chance = Rows({"probability": np.zeros((20, num_rows))}, np.full(num_rows, 50.0))
  hits = dict.fromkeys(truth, 0)
  for text in range(200):
    rng = np.random.default_rng(text)
    made = []
    for means in (target, this):
      shared, own = rng.normal(size=(1, num_rows)), rng.normal(size=(20, num_rows))
      values = 50 * (means[:, None] + 0.1 * (0.8 * shared + 0.6 * own))
      made.append(Rows({"probability": values, "log_rank": 20 * values}, np.full(num_rows, 50.0)))
    compared = Compared(*made, chance, chance)
    one = shifts(compared, num_bootstrap=400, seed=text)["probability"]
    for name, index in truth.items():
      estimate = getattr(one, name)
      upper = 20 if estimate.upper is None else estimate.upper
      hits[name] += (estimate.lower or 0) <= index <= upper
  assert min(hits.values()) >= 0.93 * 200 and hits["emergence"] < 200


def test_an_estimate_without_95_of_100_resamples_is_not_claimed():
  one = found(steps(RANDOM, RANDOM + 0.04, 5), steps(0.9, RANDOM, 1), noise=0.15)
  assert 0 < one.emergence.share < 0.95 and one.emergence.upper is None
  assert one.emergence.index is None
  assert not one.emergence.is_claimed and not one.emergence.is_absent


@pytest.mark.parametrize("width", [1, 2, 3])
def test_an_interval_must_be_narrower_than_half_of_the_depth(width):
  """Half of the rows have the target from position 0 on, and half from `width` on."""
  target = np.full((P, ROWS), 4.0)
  target[:width, ::2], target[:width, 1::2] = -20, 24.05
  chance, this = rows(np.zeros(P)), rows(steps(0.9, 0, 1))
  given = Rows({"probability": target, "log_rank": 10 * target}, np.full(ROWS, 10.0))
  one = shifts(Compared(given, this, chance, chance))["probability"].emergence
  assert (one.lower, one.upper, one.share) == (0, width, 1)
  assert one.is_claimed and (one.index is not None) == (2 * width < P - 1)


def half_of_the_rows(one, other):
  """Returns means [P, rows] that are `one` in every other row, and `other` between them."""
  return np.where(np.arange(ROWS) % 2, np.asarray(one)[:, None], np.asarray(other)[:, None])


def undecided(this):
  """Returns the shift to a target that is known, from an input token with means [P, rows]."""
  chance, target = rows(np.zeros(P)), np.array([0, 0, 0, 0, 0, 0, 0.4])
  given = Rows({"probability": 10 * this, "log_rank": 100 * this}, np.full(ROWS, 10.0))
  return shifts(Compared(rows(target), given, chance, chance))["probability"]


def test_what_half_of_the_resamples_have_is_neither_claimed_nor_absent():
  """The input token stays just below or above the half of 0.4, or of 0.4 itself, by rows."""
  one = undecided(half_of_the_rows(steps(0.9, 0.11, 2), steps(0.9, 0.29, 2)))
  assert 0.3 < one.departure.share < 0.7 and 0.3 < one.unread.share < 0.7
  for estimate in (one.departure, one.unread):
    assert (estimate.index, estimate.is_claimed, estimate.is_absent) == (None, False, False)
  one = undecided(half_of_the_rows(steps(0.9, 0.31, 2), steps(0.9, 0.49, 2)))
  assert 0.3 < one.any_crossing.share < 0.7 and not one.any_crossing.is_absent
  assert one.departure.is_absent


def test_a_crossing_is_one_of_both_kinds():
  """It lies at the end but one, and it is undecided whether the input token is read there."""
  shares = {"crossing": 0.5, "unread_crossing": 0.5}
  kinds = {name: Estimate(None, 5, None, share) for name, share in shares.items()}
  one = dataclasses.replace(found(steps(RANDOM, 0.4, 5), steps(0.9, RANDOM, 5)), **kinds)
  assert one.any_crossing == Estimate(None, 5, None, 1.0)
  assert one.any_crossing.is_claimed and not one.any_crossing.is_absent


def test_no_tokens_have_no_shift():
  empty = Rows({}, np.zeros(ROWS))
  assert shifts(Compared(empty, empty, empty, empty)) == {}


def test_one_row_has_no_interval_but_is_measured():
  one = found(steps(RANDOM, 0.4, 4), steps(0.9, RANDOM, 2), num_rows=1)
  assert (one.departure, one.emergence) == (exactly(2), exactly(4))


def test_groups_of_equal_weight_are_judged_by_their_own_chance_and_end():
  """A frequent group is said early and with large probabilities, a rare one late and with small.

  The third group, of which nothing is known in the end, is left out.
  """
  this, chance = rows(steps(0.9, 0, 1)), rows(np.zeros(P))
  frequent, rare = steps(0.1, 0.9, 1), steps(0.0, 0.1, 5)
  whole = Compared(rows((np.array(frequent) + rare) / 2), this, chance, chance)
  parts = [
    Compared(rows(frequent), this, rows(np.full(P, 0.1)), chance),
    Compared(rows(rare), this, chance, chance),
    Compared(rows(np.full(P, 0.3)), this, rows(np.full(P, 0.3)), chance),
  ]
  assert shifts(whole)["probability"].emergence.index == 1
  one = balanced_shifts(whole, parts)["probability"]
  assert (one.onset, one.emergence, one.completion) == (exactly(1), exactly(1), exactly(5))
  half = Compared(rows(steps(0.0, 0.1, 3)), this, chance, chance)
  assert balanced_shifts(whole, [parts[1], half])["probability"].emergence == exactly(3)
  assert balanced_shifts(whole, [parts[0], *[parts[1]] * 2])["probability"].emergence == exactly(5)
  assert balanced_shifts(whole, parts[:1]) == {}


def test_an_interval_leaves_out_half_of_the_rest_on_each_side():
  places = np.concatenate([[500], np.random.default_rng(0).permutation(1001)])
  found = shift._estimate(places, 10_000, 0.5)
  assert (found.lower, found.index, found.upper) == (250, 500, 750)
