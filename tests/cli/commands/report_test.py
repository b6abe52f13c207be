"""The command that writes a page about a run or a sweep; the pages in a browser where there is one.

$RESJAX_SCREENSHOTS: a folder that keeps pictures of them.
"""

import json
import os
import re
from pathlib import Path

import pytest

from resjax import combinators
from resjax.study.analysis import alignment_record
from resjax.study.sweeps import comparison, table
from tests.helpers import alignments, chromium, forks, pages, runs
from tests.study.sweeps import made

NAME = '<b>run & "1"<b>'
SAMPLE = "def f():\n  return </pre><script>alert(1)</script> 12345678901234567890"
ANSWER = "validation 1.9395 bits per byte at step 300 of 300, -43.9% since the first evaluation"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """A folder with a run and with a sweep of four arms."""
  root = tmp_path_factory.mktemp("pages")
  write_run(root / NAME)
  values = {
    (arm, seed): 2 + seed / 10 - 0.1 * i for i, arm in enumerate(made.ARMS) for seed in (0, 1)
  }
  found = made.results(values | {("gate", 0): 1.9001}, made.runs((0, 1)))
  table.save(found, root / "sweep", comparison.make(made.plan((0, 1)), found))
  table.save(made.results({("standard", None): 2.0}, made.runs([])), root / "single")
  return root


def write_run(folder: Path) -> None:
  folder.mkdir()
  config = made.config().to_dict()
  config["train"]["steps"] = 300
  options = combinators.options("block_attn_res") | {"layers_per_block": 2}
  config["model"]["residual"]["block_attn_res"] = options
  record = {
    "config": config,
    "identity": {},
    "data_fingerprint": "a",
    "costs": {"parameters": 1_708_928, "training_flops_per_token": 11_491_119.0},
    "environment": {"devices": ["<i>cpu</i>"], "git": "c0de" * 10},
  }
  (folder / "run.json").write_text(json.dumps(record))
  records = [
    {"step": 0, "validation/bits_per_byte": 3.4555},
    {"step": 150, "train/loss": 5.0, "time/tokens_per_second": 2403.0},
    {"step": 300, "validation/bits_per_byte": 1.9395},
    {"step": 300, **alignment_record.to_record(alignments.alignment(sites=("mlp",)))},
    {"step": 300, "goodput/unix_time": 1.0, "goodput/step": 75.0, "goodput/compile": 25.0},
  ]
  (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
  (folder / "sample.txt").write_text(SAMPLE)


@pytest.fixture(scope="module")
def forked():
  environment = runs.environment(COLUMNS=80)

  def run(*arguments):
    words = [str(one) for one in arguments]
    return forks.run("report", words, runs.REPOSITORY, environment)

  return run


@pytest.fixture(scope="module")
def written(root, forked):
  """The pages of the run and of the sweep."""
  for folder in (NAME, "sweep"):
    code, output = forked(root / folder)
    assert (code, output) == (0, f"{root / folder / 'page.html'}\n")
  return root / NAME / "page.html", root / "sweep" / "page.html"


def test_the_page_of_a_run(written):
  text = written[0].read_text()
  words = re.sub(r"<[^>]*>", "", text)
  assert ANSWER in words and "the next token emerges after layer" in words
  for shown in ("1,708,928", "2,403", "75.0%", "25.0%", "block_attn_res", "return &lt;/pre&gt;"):
    assert shown in words, shown
  # Columns of numbers stand at the right; a table without headings has no row of them.
  assert 'class="right">seconds<' in text and 'class="number right">75.0%<' in text
  assert 'class="right">base' not in text and text.count("<thead>") == 2
  assert "drawn by its frequency" not in words  # The run has no ranks of random tokens.
  assert re.search(r"optim\.learning_rate0\.0040\.0006", words)  # the run's, and that of the base
  assert "layers_per_block23" in words and "two_phase" not in words  # the default: 3
  # Settings like those of the base are not shown, nor options of systems that the run does not use.
  assert "weight_decay" not in words and "mhc" not in words and "workdir" not in words
  for given in (NAME, "<i>cpu", "<script>"):
    assert given not in text
  assert not re.findall(r'(?:src|href)="(?!data:|#)', text)


def test_the_page_of_a_sweep(written):
  text = written[1].read_text()
  words = re.sub(r"<[^>]*>", "", text)
  assert "laurel less standard: better, -0.3000 in validation/bits_per_byte" in words
  assert "rezero/seed_1" in words and text.count("<figure") == 3
  assert not re.findall(r'(?:src|href)="(?!data:|#)', text)


def test_a_sweep_without_seeds_and_runs_that_have_not_begun(root, forked):
  code, output = forked(root / "single", f"--out={root / 'new' / 'a.html'}")
  assert code == 0, output
  words = re.sub(r"<[^>]*>", "", (root / "new" / "a.html").read_text())
  assert "standard is the best of 1 runs, 2.0000 bits per byte" in words
  assert "3 of 4 runs have not begun" in words


def test_mistakes(root, forked):
  (root / "damaged").mkdir(exist_ok=True)
  (root / "damaged" / "results.json").write_text('{"runs": [{"name": 1}]}')
  for arguments, words in (
    ([], "name one folder of a run or of a sweep"),
    ([root, root], "name one folder"),
    ([root / "nowhere"], "there is no folder"),
    ([root], "holds neither a run (run.json) nor the results of a sweep (results.json"),
    ([root / "damaged"], "results.json: runs[0].name"),
    ([root / "sweep", f"--out={root}"], "is a folder; give a file"),
  ):
    code, output = forked(*arguments)
    assert code == 1 and output.startswith("error: ") and output.count("\n") == 1, output
    assert words in output, output


@pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium on PATH")
def test_the_first_screen_has_the_answer_and_no_number_is_broken(written, tmp_path):
  with chromium.page(tmp_path / "profile") as page:
    for width in (400, 1600):
      for path, answer in zip(written, (ANSWER, "laurel less standard: better"), strict=True):
        page.open(path, width)
        assert any(answer in text for text in pages.check(page, width))
        assert all(url.startswith(("file:", "data:")) for url in page.requests)
        if kept := os.environ.get("RESJAX_SCREENSHOTS"):
          name = "sweep" if path.parent.name == "sweep" else "run"
          page.screenshot(Path(kept) / f"{name}-{width}.png")


@pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium on PATH")
def test_broken_numbers_would_be_found(tmp_path):
  (tmp_path / "bad.html").write_text("<p style='width:3ch; overflow-wrap:anywhere'>1234567</p>")
  with chromium.page(tmp_path / "profile") as page:
    page.open(tmp_path / "bad.html", 400)
    assert page.evaluate(pages.BROKEN_NUMBERS) == ["1234567 in 1234567"]
