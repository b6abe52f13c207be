"""The gallery has every residual system, and its table of costs is that of the benchmark."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from configs import ablations
from launch.bench import report, systems
from tests.helpers.libtpu import needs_libtpu

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs/systems.md").read_text()
COSTS = json.loads((REPOSITORY / "docs/systems/costs.json").read_text())


def test_the_page_has_the_table_of_the_costs():
  assert report.replace_table(PAGE, systems.table(COSTS)) == PAGE


def test_the_page_says_what_is_published_on_every_system():
  evidence = PAGE.split("<!-- end of costs -->")[1]
  for name, _ in ablations.systems():
    title = systems.family_of(name).capitalize()
    section = evidence.split(f"\n## {title}\n")[1].split("\n## ")[0]
    (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", section, re.MULTILINE)
    assert all(cell.strip() for cell in row.split("|")), name


def test_tables_go_between_marks_alone():
  page = f"a\n{report._BEGIN}old\n{report._END}\nb\n"
  assert report.replace_table(page, "new\n") == page.replace("old\n", "\nnew\n\n")
  with pytest.raises(ValueError, match="--page has 0 and 0 lines '<!-- costs -->' and"):
    report.replace_table("no marks", "new\n")


def test_a_system_that_does_not_fit_has_its_memory_in_the_table():
  standard = {"parameters": 100, "state_bytes": 8, "flops": 10.0}
  fits = standard | {"gib": 1.0, "passes": 146.4, "hbm_passes": 130.0}
  large = standard | {"gib": 99.0, "passes": None, "hbm_passes": None, "parameters": 110}
  *_, row = systems.table({"standard": fits, "gate": large}).splitlines()
  assert row == "| `gate` | +10 | +10.00% | 8 | +0.00% | does not fit |  |  | 99.0 |"


def run(tmp_path, *flags):
  command = [sys.executable, "-m", "launch.bench.systems", *flags, f"--out={tmp_path}"]
  environment = {**os.environ, "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
  return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


@pytest.mark.release
@needs_libtpu
def test_costs_are_those_of_the_page_and_stay_where_they_are(tmp_path):
  done = run(tmp_path, "--only=standard")
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / "costs.json").read_text())
  costs, kept = found["standard"], dict(COSTS["standard"])
  assert costs.pop("jax") == jax.__version__ and kept.pop("jax")
  assert costs == pytest.approx(kept, rel=1e-2)
  found["standard"] = costs | {"jax": jax.__version__}
  again = run(tmp_path, "--only=standard")
  assert again.stdout == systems.table(found) + "\n" and systems.table(found) in done.stdout
  done = run(tmp_path, "--only=standart")
  assert done.returncode == 1 and "--only=standart: no such system; there are" in done.stderr
