"""The shift in words, the axis of layers, and names that look like formulas to matplotlib."""

import dataclasses
import itertools

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from resjax.study.analysis import depth_positions
from resjax.study.analysis.alignment import DECILES, Estimate
from resjax.study.analysis.report import alignment_figures, panels
from resjax.study.analysis.report.alignment_figures import TRAJECTORIES
from tests.helpers.alignments import alignment


def test_one_row_has_no_interval():
  given = alignment(sites=("mlp",))
  shift = depth_positions.shift_of(given)
  at = f"after {depth_positions.names(given.positions)[shift.emergence.index]} ("
  assert depth_positions.emergence_text(given, shift).startswith(f"{at}95%: ")
  given = dataclasses.replace(given, num_rows=1)
  assert depth_positions.emergence_text(given, shift) == f"{at}one row: no interval)"


ABSENT, UNDECIDED = Estimate(None, None, None, 0.05), Estimate(None, 2, None, 0.5)


def told(**changes):
  """Returns what is told of a shift with changes: input lost, unread stretch, crossing, emergence,
  the ends of the bars of its row in a figure, and the words in it."""
  given = alignment(sites=("mlp",))
  shift = dataclasses.replace(depth_positions.shift_of(given), **changes)
  axes = Figure().subplots()
  panels.draw_row(axes, depth_positions.places(given), 0, shift)
  texts = ("departure", "unread", "crossing", "emergence")
  told = [getattr(depth_positions, f"{name}_text")(given, shift) for name in texts]
  spans = [tuple(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 3]
  return *told, spans, [text.get_text() for text in axes.texts]


def test_absence_is_told_only_where_it_is_claimed():
  lost, unread, crossing, emerges, spans, _ = told(departure=ABSENT, unread=ABSENT, crossing=ABSENT)
  assert (lost, unread, crossing) == ("read to the end", "none", "none")
  assert spans[0] == (0, 6) and emerges.startswith("after layer ")
  lost, unread, crossing, _, spans, _ = told(
    departure=UNDECIDED, unread=UNDECIDED, crossing=UNDECIDED
  )
  assert (lost, crossing) == ("not localised (95%: 1 to nowhere)",) * 2
  assert unread == "not localised (95%: 2 to ?)"
  assert len(spans) == 1 and spans[0][0] > 0  # of the next token alone
  half = dataclasses.replace(UNDECIDED, share=0.03)
  assert told(crossing=half, unread_crossing=half)[2] == "not localised (95%: 1 to nowhere)"
  known = Estimate(4, 4, 4, 0.97)
  assert told(crossing=half, unread_crossing=known)[2] == (
    "after layer 3 (95%: 3 to 3), where neither is read"
  )


def test_a_sentence_says_what_is_not_localised():
  wide = {name: Estimate(None, 1, 5, 1.0) for name in ("departure", "emergence")}
  given = alignment(sites=("mlp",))
  groups = given.readings["closed"]
  shift = dataclasses.replace(groups["all"].shifts["probability"], **wide)
  only = {"all": dataclasses.replace(groups["all"], shifts={"probability": shift})}
  lost, emerges, *_ = depth_positions.answer(
    dataclasses.replace(given, readings={"closed": only})
  ).split("; ")
  assert lost == "where the input token is lost is not localised (95%: 0 to 4)"
  assert emerges.startswith(
    "where the next token emerges is not localised (95%: 0 to 4) of 6, 10 to"
  )


def test_a_next_token_that_is_perhaps_known_has_no_shift_that_is_told():
  assert told(emergence=ABSENT)[:4] == ("no shift",) * 4
  assert told(emergence=ABSENT)[-1] == ["no shift"]
  *others, emerges, _, drawn = told(emergence=UNDECIDED)
  assert others == ["not localised"] * 3 and drawn == ["not localised"]
  assert emerges == "not localised (95%: 1 to nowhere)"
  for found, words in (
    (ABSENT, "no shift"),
    (UNDECIDED, "where the next token emerges is not localised (95%: 1 to nowhere)"),
  ):
    given = alignment(sites=("mlp",))
    shift = dataclasses.replace(depth_positions.shift_of(given), emergence=found)
    assert depth_positions.marks(given, shift) == words


@pytest.mark.parametrize(
  ("index", "lower", "upper", "elsewhere"), [(3, 3, 3, True), (3, 3, 4, False), (None, 1, 6, False)]
)
def test_tenths_emerge_elsewhere_only_if_their_intervals_miss_that_of_all(
  index, lower, upper, elsewhere
):
  """All tokens emerge at 5, with 4 to 6; the tenths are alike, or not localised."""
  given = alignment(sites=("mlp",))
  groups = dict(given.readings["closed"])
  assert depth_positions.interval(range(7), groups["all"].shifts["probability"].emergence) == (4, 6)
  one = Estimate(index, lower, upper, 1.0)
  for name in DECILES:
    shift = dataclasses.replace(groups[name].shifts["probability"], emergence=one)
    groups[name] = dataclasses.replace(groups[name], shifts={"probability": shift})
  given = dataclasses.replace(given, readings={"closed": groups})
  assert depth_positions.is_elsewhere(given) == elsewhere


def test_the_last_layer_has_its_number():
  for layers in (1, 9, 18, 20, 30, 48):
    axes = Figure().subplots()
    panels.layer_axis(axes, layers)
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert shown[0] == "emb." and shown[-1] == str(layers - 1) and len(shown) <= 10
    assert list(axes.get_xticks()) == [0, *(int(name) + 1 for name in shown[1:])]


@pytest.mark.parametrize("layers", [6, 18, 20, 30, 48])
def test_labels_of_layers_do_not_overlap(layers):
  rank = TRAJECTORIES["rank"]
  figure = alignment_figures.figure(alignment(num_layers=layers, sites=("mlp",)), rank, "closed")
  figure.draw_without_rendering()
  boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
  assert all(right.x0 - left.x1 > 4 for left, right in itertools.pairwise(boxes))


def test_dollars_in_names_are_dollars(tmp_path):
  given = alignment(model=r"$\model$", corpus="$a_{$")
  rank = TRAJECTORIES["rank"]
  drawn = (
    alignment_figures.figure(given, rank, "closed"),
    alignment_figures.overlay([given, given], rank, rank.curves[1], "closed"),
  )
  for number, figure in enumerate(drawn):
    figure.savefig(tmp_path / f"{number}.png")
    named = [text for text in figure.findobj(Text) if "$" in text.get_text()]
    assert named and not any(text.get_parse_math() for text in named)
