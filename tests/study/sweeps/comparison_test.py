"""The comparison of a sweep: rows, verdicts, deviations, files and plots."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from resjax.study import statistics
from resjax.study.sweeps import comparison, comparison_plots, comparison_table, table
from tests.study.sweeps import made

NOISE = {0: 0.001, 1: -0.002, 2: 0.001}
SHIFT = {0: 0.05, 1: -0.03, 2: 0.0}


def _values(**effects):
  """Values of arms that are that much above 2, with a shift of each seed and little noise."""
  signs = {arm: (-1) ** i * (i + 1) for i, arm in enumerate(effects)}
  return {
    (arm, seed): 2 + effect + SHIFT[seed] + signs[arm] * NOISE[seed]
    for arm, effect in effects.items()
    for seed in SHIFT
  }


ALL = {"standard": 0.0, "gate": -0.1, "rezero": 0.1, "laurel": 0.0}


def _rows(found):
  return {row.contrast.arm: row for row in (*found.planned, *found.afterwards)}


def test_rows_have_paired_differences_verdicts_and_ratios():
  found = comparison.make(made.plan(margin=0.02), made.results(_values(**ALL)))
  rows = _rows(found)
  verdicts = {arm: row.verdict for arm, row in rows.items()}
  assert verdicts == {"gate": "better", "rezero": "worse", "laurel": "equal"}
  values = _values(**ALL)
  by_arm = {arm: {seed: values[arm, seed] for seed in SHIFT} for arm in ALL}
  contrasts = [statistics.Contrast(arm, "standard") for arm in ("gate", "rezero", "laurel")]
  margin = 0.02 * np.mean([*by_arm["standard"].values()])
  wanted = statistics.compare(by_arm, contrasts, dict.fromkeys(contrasts, margin))
  assert [rows[d.contrast.arm].difference for d in wanted] == wanted
  assert rows["gate"].margin == pytest.approx(margin)
  assert rows["gate"].difference.freedom == 2
  assert found.arms["gate"].mean == pytest.approx(1.9 + 0.02 / 3)
  assert rows["gate"].memory_ratio == rows["gate"].flops_ratio == 1
  assert rows["gate"].speed_ratio is None and not found.deviations and not found.exploratory
  for row in rows.values():
    alone, strictest = statistics.detectable(3), statistics.detectable(3, contrasts=3)
    own = row.difference.deviation
    assert row.detectable == pytest.approx((own * alone, own * strictest))


def test_higher_may_be_better_and_small_effects_are_undecided():
  values = _values(**ALL | {"laurel": 0.004})
  found = comparison.make(made.plan(better="higher", margin=1e-4), made.results(values))
  verdicts = {arm: row.verdict for arm, row in _rows(found).items()}
  assert verdicts == {"gate": "worse", "rezero": "better", "laurel": "undecided"}
  row = _rows(found)["laurel"]
  alone, strictest = row.detectable
  words = comparison_table.in_words(row, "loss")
  assert words.endswith(
    f"; a difference of {alone:.3g} (in the strictest step of Holm {strictest:.3g}) is seen 80 of "
    "100 times"
  )


def test_a_difference_may_be_sure_and_too_small_to_matter():
  found = comparison.make(made.plan(margin=0.2), made.results(_values(**ALL)))
  words = {arm: comparison_table.in_words(row, "loss") for arm, row in _rows(found).items()}
  assert words["gate"].startswith("better < margin, -0.1000 in loss (95%: ")
  assert words["rezero"].startswith("worse < margin, ") and words["laurel"].startswith("equal, ")


def test_what_was_not_planned_is_tested_apart():
  found = comparison.make(made.plan(contrasts=[("gate", "rezero")]), made.results(_values(**ALL)))
  assert [(r.contrast.arm, r.contrast.reference) for r in found.planned] == [("gate", "rezero")]
  assert [(r.contrast.arm, r.contrast.reference) for r in found.afterwards] == [
    ("laurel", "standard")
  ]
  planned, afterwards = found.planned[0].difference, found.afterwards[0].difference
  assert planned.freedom == afterwards.freedom == 2 and planned.p == planned.holm


def test_a_diverged_arm_is_not_ranked_and_missing_seeds_are_told():
  values = _values(**ALL)
  nan = made.records(None)
  values["gate", 1] = nan
  del values["rezero", 2]
  found = comparison.make(made.plan(), made.results(values))
  rows = _rows(found)
  assert rows["gate"].verdict == "diverged" and rows["gate"].difference is None
  assert rows["rezero"].difference.seeds == (0, 1)
  assert found.deviations == (
    "gate: seed 1 (diverged at step 4) missing",
    "rezero: seed 2 missing",
  )
  # The arm without a finished run has a row too.
  nothing = {key: value for key, value in values.items() if key[0] == "standard"}
  found = comparison.make(made.plan(), made.results(nothing))
  assert {row.verdict for row in found.planned} == {"undecided"}
  assert not any(row.detectable for row in found.planned)


def test_speeds_count_only_alone_and_on_the_same_devices():
  values, plan = _values(**ALL), made.plan()
  slow = made.results(values, speed=50.0)
  mixed = [r if r.arm == "standard" else s for r, s in zip(made.results(values), slow, strict=True)]
  assert _rows(comparison.make(plan, mixed))["gate"].speed_ratio is None
  assert _rows(comparison.make(plan, mixed, alone=True))["gate"].speed_ratio == 0.5
  other = made.results(values, devices=("gpu",))
  mixed = [r if r.arm == "standard" else s for r, s in zip(slow, other, strict=True)]
  assert _rows(comparison.make(plan, mixed, alone=True))["gate"].speed_ratio is None


def test_changed_code_other_steps_and_a_late_plan_are_told():
  values = _values(**ALL)
  found = comparison.make(made.plan(now=3000.0), made.results(values, git="other"))
  assert found.exploratory == (
    "the plan of 1970-01-01 00:50:00+00:00 is younger than the records of standard/seed_0 and 11 "
    "more",
  )
  assert found.deviations == ("standard/seed_0 and 11 more: other code, other, planned was c0de",)
  longer = {**made.ARMS, "gate": {"train.steps": 2}}
  given = made.runs(arms=longer)
  changed = [made.results(values, [run], steps=2 if run.arm == "gate" else 4)[0] for run in given]
  found = comparison.make(made.plan(), changed)
  assert found.deviations == ("gate: 2 steps, planned were 4",)
  assert found.arms["gate"].seeds == 0


def _text(found):
  stream = io.StringIO()
  comparison_table.show(found, Console(file=stream, width=80))
  return stream.getvalue()


def test_tables_fit_a_narrow_terminal():
  values = _values(**ALL)
  values["laurel", 0] += 0.5
  found = comparison.make(made.plan(contrasts=[("gate", "standard")]), made.results(values))
  lines = _text(found).splitlines()
  words = {tuple(line.split()) for line in lines}
  low, high = found.planned[0].difference.interval
  interval = f"{low:+.4f}..{high:+.4f}"
  assert found.planned[0].difference.holm < 0.001
  assert ("gate", "3", "1.9067", "-0.1000", interval, "<0.001", "better") in words
  assert ("standard", "3", "2.0067") in words
  assert any("found afterwards, to be tested on new seeds" in line for line in lines)
  text = _text(found)
  assert text.count("rule: paired t of each contrast alone, ν = seeds − 1 = 2; p Holm over 1;") == 1
  assert text.count("rule: paired t of each contrast alone, ν = seeds − 1 = 2; p Holm over 2;") == 1
  low, high = sorted(row.detectable[0] for row in found.afterwards)
  assert f"difference seen 80 of 100 times: {low:.3g} (" in text and f"to {high:.3g} (" in text
  assert all(len(line) <= 80 for line in lines if not line.startswith("rule")), lines


def test_results_json_is_read_back_with_types(tmp_path):
  found = comparison.make(made.plan(), made.results(_values(**ALL)))
  path, as_csv = table.save(made.results(_values(**ALL)), tmp_path, found)
  assert table.read(tmp_path) == table.Stored(made.results(_values(**ALL)), found)
  assert "error" in json.loads(path.read_text())["comparison"]["planned"][0]["difference"]
  assert as_csv.read_text().count("\n") == 13
  damaged = path.read_text().replace('"verdict": "better"', '"verdict": 7')
  path.write_text(damaged)
  with pytest.raises(ValueError, match=r"results.json: comparison.planned\[0\].verdict is 7"):
    table.read(tmp_path)


def test_plots_have_intervals_margin_and_single_seeds():
  found = comparison.make(made.plan(contrasts=[("gate", "standard")]), made.results(_values(**ALL)))
  (axes,) = comparison_plots.differences(found, "$title").axes
  drawn = [tuple(map(float, line.get_xdata())) for line in axes.lines]
  for row in (*found.planned, *found.afterwards):
    assert row.difference.interval in drawn and (row.difference.mean,) in drawn
    assert all((x,) in drawn for x in row.difference.paired)
  shaded = [collection.get_paths()[0].get_extents() for collection in axes.collections]
  assert [(box.x0, box.x1) for box in shaded] == [
    pytest.approx((-row.margin, row.margin)) for row in (*found.planned, *found.afterwards)
  ]
  labels = [label.get_text() for label in axes.texts]
  assert labels == ["gate - standard", "rezero - standard", "laurel - standard"]


def test_curves_are_means_over_tokens_with_intervals():
  results = made.results(_values(**ALL))
  (axes,) = comparison_plots.curves(results, "validation/bits_per_byte", "title").axes
  line = next(line for line in axes.lines if line.get_label() == "gate")
  batch = 8 * 256
  mean = np.mean([_values(**ALL)["gate", seed] for seed in SHIFT])
  assert line.get_xydata().tolist() == [
    pytest.approx([2 * batch, mean + 1]),
    pytest.approx([4 * batch, mean]),
  ]
  assert len(axes.collections) == len(ALL)  # bands


def test_no_plot_of_nothing():
  found = comparison.make(made.plan(), made.results({}))
  assert comparison_plots.differences(found, "title") is None
  assert comparison_plots.curves(made.results({}), "x", "title") is None


def test_the_smallest_effect_is_told_before_the_runs():
  plan = made.plan(spread=0.0015)
  stream = io.StringIO()
  effects = comparison.expected(plan, 0.0015)
  comparison_table.show_plan(plan, effects, Console(file=stream, width=80))
  assert "can be seen" in stream.getvalue() and [*effects] == [3, 5, 10]
  for n, (alone, strictest) in effects.items():
    assert alone == pytest.approx(2**0.5 * 0.0015 * statistics.detectable(n)) and strictest > alone
    assert f"with {n} seeds {alone:.3g} (in the strictest step" in stream.getvalue()
  comparison_table.show_plan(made.plan(seeds=(0,)), None, Console(file=stream, width=80))
  assert "one seed" in stream.getvalue()


def test_the_example_of_the_specification():
  # 124M parameters, a spread of 0.0015 nats over seeds, three seeds, eight contrasts.
  arms = {name: {} for name in "abcdefghi"}
  effects = comparison.expected(made.plan(arms=arms), 0.0015)
  assert effects[3] == pytest.approx((0.0069, 0.0196), abs=1e-4)
  assert effects[5] == pytest.approx((0.0036, 0.0063), abs=1e-4)
