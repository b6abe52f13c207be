"""Numbers of pages are those of committed JSON."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest
from scipy import stats

from configs.ablations import depthbench_1m, lns_rate
from configs.ablations import moe_order as moe_order_config
from docs import recompute
from docs.comparisons import compiled_shapes
from docs.findings import depth, moe_order, statements, swept_models
from docs.systems import public
from resjax.study.analysis import report
from resjax.study.analysis.stream_factors import StreamFactors
from resjax.study.sweeps import comparison, expand, plan, results, table
from tests.helpers.alignments import SITES, alignment, shift_at

PAGE = "The arm is <!--a.mean-->0.1<!--/--> above.\n\n<!--a.table-->\nold\n<!--/-->\n"


def test_pages_have_the_numbers_of_their_json(capsys):
  assert recompute.main("--check") == 0, capsys.readouterr().out


def test_a_number_that_differs_is_told_and_written(tmp_path, monkeypatch, capsys):
  path = tmp_path / "page.md"
  path.write_text(PAGE)
  monkeypatch.setattr(recompute, "DOCS", tmp_path)
  made = {"mean": "0.2", "table": "\n| new |\n"}
  monkeypatch.setattr(recompute, "SOURCES", {"a": lambda: made})
  assert recompute.main("--check") == 1 and path.read_text() == PAGE
  said = capsys.readouterr().out
  assert str(path) in said and "<!--a.mean-->0.2<!--/-->" in said and "| new |" in said
  assert recompute.main() == 0
  assert path.read_text() == PAGE.replace("0.1", "0.2").replace("old", "| new |")
  assert recompute.main("--check") == 0


def test_unknown_names_and_marks_that_begin_a_line_are_refused():
  with pytest.raises(ValueError, match=r"no number is called a.gain; there are a.mean"):
    recompute.filled("is <!--a.gain-->1<!--/-->", {"a.mean": "1"})
  with pytest.raises(ValueError, match="begins with a mark"):
    recompute.filled("<!--a.mean-->1<!--/--> is", {"a.mean": "1"})


def test_every_statement_says_verdict_place_data_and_command():
  page = (recompute.DOCS / "findings.md").read_text()
  sections = re.split(r"^##+ ", page, flags=re.MULTILINE)
  statements = [text for text in sections if re.match(r"C\d", text)]
  assert len(statements) >= 4
  for text in statements:
    fields = re.findall(r"^- \*\*(\w+)\*\*: \S", text, re.MULTILINE)
    assert fields == ["Verdict", "Where", "Data", "Command"], text.splitlines()[0]


def test_a_statement_has_the_figures_of_its_values():
  """Against scipy, with two contrasts as one family."""
  values = {"a": [1.0, 2.0, 4.0], "b": [0.5, 0.5, 1.5], "c": [3.0, 2.5, 2.0]}
  by_text = {arm: dict(zip("xyz", found, strict=True)) for arm, found in values.items()}
  made = statements.Statement(by_text, "here", "resjax x", (("a", "b"), ("c", "b")), " %").numbers()
  assert made["where"] == "here" and made["command"] == "`resjax x`"
  low, high = stats.ttest_1samp(values["a"], 0).confidence_interval()
  assert made["a"] == f"2.3 % (\N{MINUS SIGN}{-low:.1f} to {high:.1f}), n = 3"
  p = [stats.ttest_rel(values[arm], values["b"]).pvalue for arm in "ac"]
  low, high = stats.ttest_rel(values["a"], values["b"]).confidence_interval()
  wanted = f"+1.5 (\N{MINUS SIGN}{-low:.1f} to +{high:.1f}), n = 3, p = {2 * p[1]:#.2g}"
  assert made["a-b"] == wanted and p[1] < p[0] < 2 * p[1]  # Holm


def test_the_order_of_designs_is_told_by_pairs_that_are_reversed_for_sure():
  def values(**means):
    noise = (0.0, 1e-4, -1e-4, 2e-4, 1e-4)
    return {
      arm: {seed: mean + x * (1 + place) for seed, x in enumerate(noise)}
      for place, (arm, mean) in enumerate(means.items())
    }

  order = functools.partial(statements.order, margin=0.0025)
  shallow = values(a=1.0, b=1.1, c=1.2)
  same = order(shallow, values(a=2.0, b=2.1, c=2.2))
  assert (same["order"], same["order.pairs"]) == ("refuted", "none")
  turned = order(shallow, values(a=2.1, b=2.0, c=2.2))
  assert (turned["order"], turned["order.pairs"]) == ("confirmed", "`a` and `b`")
  assert turned["order.counts"] == "1 of 3 pairs of means, 1 for sure"
  small = order(shallow, values(a=2.0001, b=2.0, c=2.2))  # within the margin of 0.005
  assert (small["order"], small["order.counts"]) == ("refuted", "1 of 3 pairs of means, 0 for sure")
  noisy = values(a=2.01, b=2.0, c=2.2) | {"a": dict(enumerate((2.0, 2.1, 1.9, 2.1, 2.1)))}
  unsure = order(shallow, noisy)
  assert (unsure["order"], unsure["order.pairs"]) == ("undecided", "none")
  one = order(*({a: {0: v[0]} for a, v in x.items()} for x in (shallow, values(b=1, a=2))))
  assert one["order"] == "undecided"
  assert order(shallow, {})["order"] == "undecided"  # no pair is there
  found = [depth.verdict(v) for v in ("better, within the margin", "worse", "equal", "diverged")]
  assert found == ["confirmed", "refuted", "refuted", "undecided"]


def write_sweep(root, file, argument, offsets):
  """Writes what `resjax sweep` leaves of a planned sweep, an arm at 2 bits per byte and offset."""
  config = file.get_config(argument)
  arms = {run.arm: run.overrides for run in expand(config, file.sweep(config))}
  asked = plan.questions(file.PLAN, list(arms))
  runs = expand(config, arms.items(), asked.seeds)
  made = plan.make(asked, runs, None, 0.0)
  rate = 0.002 * int(argument[0]) if argument[0].isdigit() else 0.002
  tuned = {arm: {"optim.learning_rate": rate} for arm in arms}
  found = []
  for run in runs:
    value = 2 + offsets.get(run.arm, 1) + run.seed / 10 + (len(run.arm) * run.seed) % 7 / 1e4
    done = {"status": "done", "value": value, "bits_per_byte": value, "steps": 250}
    found.append(dataclasses.replace(results.result(run, [], {}), **done))
  folder = root / config.workdir.removeprefix("runs/")
  plan.write(folder, dataclasses.replace(made, tuned=tuned))
  table.save(found, folder, comparison.make(made, found))


def test_sweeps_of_depth_become_tables_and_verdicts(tmp_path):
  assert depth.numbers(tmp_path) == {}
  wide = {"standard": 0.2, "mhc": 0.1, "hyper_connections": 0.3}
  write_sweep(tmp_path, depthbench_1m, "6", wide)
  write_sweep(tmp_path, depthbench_1m, "48", wide | {"mhc": 0.4})
  write_sweep(tmp_path, lns_rate, "24,0.004", {"lns": 0.3, "lns-x5": 0.5})
  found = depth.numbers(tmp_path)
  assert (found["deep"], found["lns"], found["order"]) == ("confirmed", "refuted", "confirmed")
  assert found["order.pairs"] == "`standard` and `mhc`, `hyper_connections` and `mhc`"
  faster = {"standard": 0.9, "standard-x5": 0.5, "lns-x5": 0.5}
  write_sweep(tmp_path, lns_rate, "24,0.004", faster)
  assert depth.numbers(tmp_path)["lns"] == "undecided"  # the rate helps everybody
  assert "| `keel` | 0.012 | 0.008 |" in found["rates"]
  assert found["missing"] == "all at 12 layers; all at 24 layers"
  (row,) = re.findall(r"^\| `mhc` \| (2\.4\S*) .* \| (2\.7\S*) .* \|$", found["losses"], re.M)
  assert [float(mean) for mean in row] == pytest.approx([2.4, 2.7], abs=0.002)


def test_depth_has_no_verdict_before_its_sweeps_are_finished(tmp_path):
  write_sweep(tmp_path, depthbench_1m, "6", {"mhc": 0.1})
  write_sweep(tmp_path, depthbench_1m, "48", {"mhc": 0.1})
  write_sweep(tmp_path, lns_rate, "24,0.004", {})
  verdicts = {"order", "deep", "lns"}
  assert depth.numbers(tmp_path).keys() >= verdicts
  deep, rates = tmp_path / "depthbench_1m_48", tmp_path / "lns_rate_24"
  for folder, last in ((deep, "keel/seed_5"), (rates, "lns-x5/seed_3")):
    table.save([run for run in table.read(folder).runs if run.name != last], folder)
  found = depth.numbers(tmp_path)
  assert not found.keys() & verdicts and "`keel` at 48 layers" in found["missing"]
  runs = table.read(deep).runs
  lost = dataclasses.replace(runs[0], name="keel/seed_5", arm="keel", seed=5, status="diverged")
  table.save([*runs, lost], deep)
  assert {"order", "deep"} <= depth.numbers(tmp_path).keys()  # an arm that diverged has ended


def test_a_sweep_is_kept_in_pieces(tmp_path):
  offsets = {"standard": 0.2, "mhc": 0.1, "hyper_connections": 0.3}
  write_sweep(tmp_path, depthbench_1m, "6", offsets)
  sweep, whole, kept = (tmp_path / name for name in ("depthbench_1m_6", "whole", "kept"))
  swept_models.keep_sweep(sweep, whole)
  runs = table.read(sweep).runs
  for has_baseline in (False, True, False):
    table.save([run for run in runs if (run.arm in ("standard", "mhc")) == has_baseline], sweep)
    if not has_baseline and not kept.exists():
      with pytest.raises(ValueError, match="lacks 'standard'"):
        swept_models.keep_sweep(sweep, kept)
      continue
    swept_models.keep_sweep(sweep, kept)
    if has_baseline:
      piece = plan.read(kept)
      assert piece and {*piece.arms} == {"standard", "mhc"}
      assert piece.questions.contrasts == (("mhc", "standard"),)
  read = {folder: plan.read(folder) for folder in (whole, kept)}
  assert read[whole] and read[kept] and {*read[kept].arms} == {*read[whole].arms}
  assert read[kept].questions == read[whole].questions
  found = {folder: table.read(folder) for folder in (whole, kept)}
  assert sorted(found[kept].runs, key=repr) == sorted(found[whole].runs, key=repr)
  rows = [{repr(row) for row in x.comparison.planned} for x in found.values() if x.comparison]
  assert len(rows) == 2 and rows[0] == rows[1]
  plan.write(sweep, dataclasses.replace(read[whole], questions=plan.Questions(seeds=(1,))))
  with pytest.raises(ValueError, match="another plan"):
    swept_models.keep_sweep(sweep, kept)


def test_the_order_of_systems_is_told_when_dense_and_mixture_are_finished(tmp_path):
  assert moe_order.numbers(tmp_path) == {}
  means = {arm: place / 10 for place, arm in enumerate(moe_order_config.SYSTEMS)}
  write_sweep(tmp_path, moe_order_config, "dense", means)
  found = moe_order.numbers(tmp_path)
  assert found["mhc.verdict"] == "worse" and "order" not in found  # of the dense sweep alone
  assert found["missing"].startswith("`standard` (mixture), ") and "(dense)" not in found["missing"]
  write_sweep(tmp_path, moe_order_config, "moe", means | {"mhc": 0.15})
  found = moe_order.numbers(tmp_path)
  assert (found["missing"], found["order"]) == ("none", "confirmed")
  assert found["order.pairs"] == "`attn_res` and `mhc`, `hyper_connections` and `mhc`"
  assert "| design | dense | mixture |" in found["losses"]
  assert re.search(r"^\| `mhc` \| 2\.7\S* .* \| 2\.4\S* .* \|$", found["losses"], re.M)
  assert "| `mhc` | 0.002 | 0.002 |" in found["rates"]
  path = tmp_path / "moe_order_moe/results.json"
  stored = json.loads(path.read_text())
  for run in stored["runs"]:
    if (run["arm"], run["seed"]) == ("attn_res", 3):
      run["status"] = "partial"
  path.write_text(json.dumps(stored))
  found = moe_order.numbers(tmp_path)
  assert found["missing"] == "`attn_res` (mixture)" and "order" not in found
  path.write_text(json.dumps(stored).replace('"partial"', '"diverged"'))
  found = moe_order.numbers(tmp_path)
  assert (found["missing"], found["order.pairs"]) == ("none", "`hyper_connections` and `mhc`")


def test_models_of_a_sweep_say_where_gates_attenuate_and_what_states_are_near_to(
  tmp_path, monkeypatch
):
  """Against gates, gaps and layers that are known, and scipy."""
  monkeypatch.setattr(swept_models, "FOLDER", tmp_path / "kept")
  swept_models.FOLDER.mkdir()
  write_sweep(tmp_path, lns_rate, "24,0.004", {})
  gaps = {"standard": [0.1, 0.2, 0.3, 0.4, 0.5], "lns": [0.2, 0.2, 0.4, 0.6, 0.5]}
  gaps |= {"standard-x5": gaps["standard"], "lns-x5": gaps["standard"]}
  alphas = np.array([[1.0, 0.9], [0.5, 1.0]])  # of layer 0 and 1: 0.9 and 0.5
  for arm, found in gaps.items():
    models = []
    for seed, gap in enumerate(found):
      one = alignment(f"seed_{seed + 1}, step 250", "", 3, sites=("mlp",), seed=seed)
      group = one.readings["closed"]["all"]
      metrics = group.metrics | {"cosine_next": gap + group.metrics["cosine_input"]}
      shifts = {"probability": shift_at(1, 2 + (arm == "lns" and seed > 2), 4)}
      group = dataclasses.replace(group, metrics=metrics, shifts=shifts)
      one = dataclasses.replace(one, readings={"closed": {"all": group}})
      factors = StreamFactors(
        SITES, alphas + (seed == 0 and arm == "lns") * 0.5 - seed / 1e4, alphas
      )
      factors = None if arm == "standard" else factors
      models.insert(0, report.Results(one, factors=factors))  # in any order
    (tmp_path / "analysis" / arm).mkdir(parents=True)
    (tmp_path / "analysis" / arm / "results.json").write_text(report.results.to_json(models))
  swept_models.keep(str(tmp_path / "lns_rate_24"), str(tmp_path / "analysis"))
  found = statements.of_sweep(swept_models.FOLDER / "lns_rate_24")
  test = stats.ttest_rel(gaps["lns"], gaps["standard"])
  low, high = test.confidence_interval()
  assert found["lns.gap"].startswith(f"+0.08 (\N{MINUS SIGN}{-low:.2f} to +{high:.2f}), n = 5")
  assert found["gap"].startswith("0.30 (") and found["emergence"] == "1 (1 to 1), n = 5"
  assert found["lns.emergence"].startswith("+0.4") and "standard-x5.emergence" in found
  assert found["lns.attenuation"].endswith("; layer 1 most in 4")
  assert found["lns.located"] == "nothing to locate"  # the first one has factors above 1
  assert found["lns.share"] == "too little to locate in 1 of 5"
  assert found["standard-x5.share"] == "83.289 % (83.245 to 83.332), n = 5; the largest in 5 of 5"
  assert found["standard-x5.located"] == "undecided"  # even would be 50 %
  factor = float(found["standard-x5.factor"].split()[0])
  assert factor == pytest.approx(0.45**0.5, abs=1e-3)
  assert "standard.share" not in found


def test_the_picture_of_depth_has_our_sweeps_beside_the_public_one(monkeypatch):
  assert len(public.figure().axes) == len(public.DRAWN) + bool(depth.losses())
  ours = {6: {"standard": {1: 2.2, 2: 2.4}, "lns": {1: 2.3}}, 48: {"standard": {1: 2.5, 2: 2.7}}}
  monkeypatch.setattr(depth, "losses", lambda: ours)
  *others, panel = public.figure().axes
  assert [text.get_text() for text in panel.get_xticklabels()] == ["6", "48"]
  bars = {one.get_label(): one for one in panel.containers}
  assert [*bars] == ["standard", "lns"]
  theirs = {line.get_label(): line.get_color() for line in others[0].get_lines()}
  assert bars["lns"].lines[0].get_color() == theirs["LNS"]
  assert [*bars["standard"].lines[0].get_ydata()] == pytest.approx([2.3, 2.6])
  (first, _), *_ = (lines.get_segments() for lines in bars["standard"].lines[2])
  assert first[:, 1] == pytest.approx([2.3 - 0.1 * 12.706, 2.3 + 0.1 * 12.706], abs=1e-4)


def test_compiled_shapes_keep_what_their_table_has(tmp_path, monkeypatch):
  monkeypatch.setattr(compiled_shapes, "PATH", tmp_path / "kept.json")
  head = {"topology": "v5p-32", "devices": 16, "jax": "1.2", "hbm_available": 95 * 2**30}
  memory = {"arguments": {"parameters": 2**30, "optimizer": 2**31, "batch": 0}, "padding": 0}
  memory |= {"temporaries": 2**29, "output": 0, "code": 0, "donated": 2**31}
  times = {"lower_seconds": 1.5, "compile_seconds": 70.0, "cpu_seconds": 60.4}
  refused = {"required": 99 * 2**30, "available": 95 * 2**30, "fits_with": "--config.a=2"}
  for name, found in {
    "v5p-32-70": head | times | {"fits": True, "memory": memory},
    "v5p-32-16": head | refused | {"fits": False},
  }.items():
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  compiled_shapes.keep(*map(str, tmp_path.glob("v5p*.json")))
  shown = compiled_shapes.numbers()
  assert shown["jax"] == "1.2"
  assert shown["table"].splitlines()[3:] == [
    "| 16 | v5p-32 | with --config.a=2 | 99.00 of 95.00 |  |  |  |",
    "| 70 | v5p-32 | yes | 3.50 of 95.00 | 0.50 | 72 s | 60 s |",
  ]


@pytest.mark.parametrize(
  "folder", [path.parent for path in statements.FOLDER.glob("*/plan.json")], ids=lambda f: f.name
)
def test_the_stored_comparison_of_a_sweep_is_that_of_its_plan_and_runs(folder):
  stored = table.read(folder)
  found = comparison.make(plan.read(folder), stored.runs)
  rows = [(row.contrast, row.difference, row.verdict) for row in found.planned]
  assert [(row.contrast, row.difference, row.verdict) for row in stored.comparison.planned] == rows
