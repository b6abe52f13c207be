"""Growth: slopes of constructed numbers, what is too steep, and small sizes of every part."""

import json
import subprocess
import sys

import pytest

from launch.bench import report
from launch.bench.growth import compiled, parts, rows, text
from launch.bench.growth.rows import Asked, Bar, Row
from resjax import combinators
from tests.helpers.runs import REPOSITORY, environment

SQUARE = {2: 4.0, 4: 16.0, 16: 256.0}


def row(costs=SQUARE, exponent=2.0, counted=True, least=0.0):
  bar = Bar(exponent, "pairs", least)
  return Row("tokens", "mhc", "bytes", "tokens", costs, bar, counted, "resjax bench growth")


def test_a_slope_is_the_power_between_each_size_and_the_next():
  assert row().slopes == pytest.approx([2, 2])
  assert row({10: 3.0, 100: 3.0, 1000: 30.0}).slopes == pytest.approx([0, 1])


def test_the_steepest_slope_counts():
  assert row().problem == "" and row({1: 9.0, 8: 9.0}, 0).problem == ""
  bent = {1: 1.0, 10: 1.0, 100: 100.0, 1000: 100.0}  # linear as a whole
  said = row(bent, 1).problem
  assert said == "tokens: bytes of mhc to the power 2.00 of tokens, allowed: 1"


def test_what_is_measured_has_more_slack_than_counts():
  costs = {1: 1.0, 10: 10**1.2}
  assert row(costs, 1, counted=False).problem == ""
  assert row(costs, 1).problem
  assert row({1: 1.0, 10: 10**1.3}, 1, counted=False).problem


def test_a_ratio_may_grow_but_not_fall_below_its_least():
  assert row({1: 0.9, 2: 9.0}, None, least=0.85).problem == ""
  assert "is 0.8, allowed: 0.85 or more" in row({1: 0.8, 2: 0.9}, None, least=0.85).problem


def test_a_cost_of_nothing_is_refused():
  with pytest.raises(ValueError, match=r"bytes of mhc is 0\.0 at 2 tokens; needed: more than 0"):
    row({1: 1.0, 2: 0.0})


def test_the_page_has_a_table_for_each_part_and_why():
  shown = rows.table([row().to_json(), row(exponent=1.0).to_json() | {"subject": "gate"}])
  assert shown.splitlines() == [
    "### tokens: 2, 4, 16 tokens",
    "",
    "| | bytes | command |",
    "|---|---|---|",
    "| `mhc` | 4 to 256, 2.00 | `resjax bench growth` |",
    "| `gate` | 4 to 256, **2.00** | `resjax bench growth` |",
    "",
    "- bytes, at most 2: pairs",
    "- bytes, at most 1: pairs",
  ]


def test_the_page_has_the_tables_of_its_report():
  page = (REPOSITORY / "docs/growth.md").read_text()
  found = json.loads((REPOSITORY / "docs/growth/bench_growth.json").read_text())["rows"]
  assert report.replace_table(page, rows.table(found)) == page


def test_systems_are_of_every_family():
  named = [name for name in parts.SYSTEMS if name in combinators.names()]
  families = {combinators.get(name).family for name in named}
  assert families | {"others"} == set(combinators.FAMILIES) and len(named) < len(parts.SYSTEMS)


def test_flags_choose_parts_and_sizes():
  assert list(parts.chosen([], [], False)) == list(parts.PARTS)
  assert list(parts.chosen([], [], True)) == ["rows", "tokens", "layers"]
  assert parts.chosen(["layers"], ["layers=2,3", "data=1,2"], True)["layers"].sizes == (2, 3)
  with pytest.raises(ValueError, match="--what=data: no such part; allowed with --counted: rows,"):
    parts.chosen(["data"], [], True)
  for wrong in ("layers", "layers=2", "layers=3,2", "layers=0,2", "layers=2,x", "width=1,2"):
    with pytest.raises(ValueError, match=f"--sizes={wrong}: allowed: PART=SIZE,SIZE"):
      parts.chosen([], [wrong], False)
  assert len(parts.systems(["all"])) > len(parts.systems(parts.SYSTEMS))
  with pytest.raises(ValueError, match="--systems=none: no such system; allowed: all, standard"):
    parts.systems(["none"])


def test_a_call_keeps_the_rows_that_it_does_not_measure(tmp_path):
  path = tmp_path / "bench_growth.json"

  def measure(name, *costs):
    part = parts.Part((2, 4, 16), lambda asked: iter(map(row, costs)))
    return parts.measure({name: part}, ["mhc"], "", False, path)

  _, problems = measure("tokens", SQUARE)
  assert problems == []
  path.write_text(path.read_text().replace('"tokens"', '"layers"', 1))
  steep = {2: 8.0, 4: 64.0, 16: 4096.0}
  found, problems = measure("tokens", SQUARE, steep)
  assert [row["part"] for row in found["rows"]] == ["tokens", "layers"]
  assert found["rows"][0]["costs"] == {"2": 8.0, "4": 64.0, "16": 4096.0}
  assert found == json.loads(path.read_text())
  assert problems == ["tokens: bytes of mhc to the power 3.00 of tokens, allowed: 2"]
  path.write_text("{")
  with pytest.raises(ValueError, match=r"json is damaged: .*; delete it, or choose another --out"):
    measure("tokens", SQUARE)
  assert path.read_text() == "{"


STEEP = """
import sys
from launch.bench.growth import __main__ as growth, parts
from launch.bench.growth.rows import Bar, Row
from resjax.cli import command

def measure(asked):
  costs = {size: float(size**3) for size in asked.sizes}
  yield Row("layers", "mhc", "bytes", "layers", costs, Bar(1, "linear"), True, asked.command)

parts.PARTS["layers"] = parts.Part((2, 4), measure, counts=True)
command.run(growth.main)
"""


def test_what_grows_too_fast_ends_the_command_with_1(tmp_path):
  page = tmp_path / "page.md"
  page.write_text("a\n<!-- costs -->\n<!-- end of costs -->\nb\n")
  done = subprocess.run(
    [sys.executable, "-c", STEEP, "--what=layers", "--sizes=layers=2,8", f"--out={tmp_path}",
     f"--page={page}"],
    cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 1
  last = done.stderr.splitlines()[-1]
  assert last == (
    "error: faster than allowed: layers: bytes of mhc to the power 3.00 of layers, allowed: 1"
  )
  (found,) = json.loads(done.stdout)["rows"]
  assert found["command"] == "resjax bench growth --what=layers --sizes=layers=2,8"
  assert "| `mhc` | 8 to 512, **3.00** |" in page.read_text()


def test_a_text_has_its_size_and_no_document_twice(tmp_path):
  library = tmp_path / "library"
  library.mkdir()
  for number in range(3):
    lines = [f"line {index} of {number}\n" for index in range(4000)]
    (library / f"{number}.py").write_text("".join(lines))
  (library / "notes.txt").write_text("no source")
  text.write(tmp_path / "text", 1, library)
  lines = (tmp_path / "text" / "0000.jsonl").read_text().splitlines()
  documents = [json.loads(line)["text"] for line in lines]
  assert documents[0] == (library / "0.py").read_text() != documents[3]
  assert sorted(documents[0]) == sorted(documents[3])
  assert len(set(documents)) == len(documents) and all("source" not in d for d in documents)
  size = sum(map(len, documents))
  assert 10**6 <= size < 10**6 + len(documents[-1])
  with pytest.raises(ValueError, match=r"has no \.py files"):
    text.write(tmp_path / "other", 1, tmp_path / "text")


@pytest.mark.slow
def test_steps_grow_with_layers_as_they_may():
  asked = Asked((2, 4), ("standard",), "", "resjax bench growth --what=layers")
  found = {one.cost: one for one in compiled.of_layers(asked)}
  assert [one.problem for one in found.values() if one.counted] == [""] * 6
  assert found[compiled.INSTRUCTIONS].slopes == [0]
  assert found[compiled.FLOPS].slopes[0] > 0.5
  assert found[compiled.SECONDS].command == "resjax bench growth --what=layers --systems=standard"


@pytest.mark.release
@pytest.mark.parametrize(
  ("part", "sizes", "subjects"),
  [
    ("data", "1,2", {"build_dataset"}),
    ("rows", "1,2", {"standard", "gate"}),
    ("tokens", "16,32", {"standard", "gate"}),
    ("decode", "8,16", {"standard", "gate"}),
    ("prefill", "16,32", {"standard"}),
    ("checkpoint", "1,2", {"float32 and moments"}),
    ("sweep", "1,2", {"runs of two steps"}),
    ("score", "64,128", {"text", "choices"}),
  ],
)
def test_a_small_size_of_each_part(part, sizes, subjects):
  """The rows of a part; what such small sizes grow as says nothing."""
  asked = Asked(tuple(map(int, sizes.split(","))), ("standard", "gate"), "", "resjax bench growth")
  found = list(parts.PARTS[part].measure(asked))
  assert {one.subject for one in found} == subjects
  assert all(list(one.costs) == list(asked.sizes) for one in found)
  assert all(one.part == part for one in found)
