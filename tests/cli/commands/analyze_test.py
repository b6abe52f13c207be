"""The analyze command, as its users run it: on runs, on Hugging Face folders, on bad input."""

import json
import signal
import sys
import time

import pytest

from resjax.study.analysis.report import results
from tests.helpers import pretrained, trained
from tests.helpers.runs import start, write_text
from tests.helpers.trained import STEPS


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  root = write_text(tmp_path_factory.mktemp("analyze"))
  pretrained.folder(root)  # llama
  return root


@pytest.fixture(scope="module")
def checkpoint(root):
  """The folder of a run."""
  trained.run(trained.settings(root, root / "run", "attn_res"))
  return root / "run"


def command(*flags):
  return [sys.executable, "-m", "resjax", "analyze", *map(str, flags)]


def run(*flags):
  process = start(command(*flags), COLUMNS=120)
  output, _ = process.communicate(timeout=300)
  return process.returncode, output


@pytest.fixture(scope="module")
def report(root, checkpoint):
  """Of a run and a pretrained model together, with cuts of the latter."""
  text, folder = root / "text" / "0.txt", root / "llama"
  cuts = [sys.executable, "-m", "resjax", "intervene", f"--hf={folder}", f"--data={text}"]
  process = start([*map(str, cuts), "--tokens=64", "--alphas=0", f"--out={root / 'cuts.json'}"])
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  models = [f"--checkpoint={checkpoint}", f"--hf={folder}"]
  more = [f"--data={text}", "--tokens=128", "--text=depth width", "--every=site"]
  code, output = run(*models, *more, f"--sensitivity={root / 'cuts.json'}", f"--out={root / 'out'}")
  assert code == 0, output
  return output


@pytest.mark.slow
def test_what_is_written(root, report):
  out = root / "out"
  assert report.splitlines()[-3:] == [
    str(out / n) for n in ("report.html", "plots", "results.json")
  ]
  names = {path.name for path in (out / "plots").glob("*")}
  assert {"1_rank.png", "1_depth_attention.png", "1_read_rank.png", "2_cuts_1.png"} <= names
  assert {"overlay_rank_next_token.png", "2_norm.png", "1_heat.png", "2_heat.png"} <= names
  assert not {"2_depth_attention.png", "2_read_rank.png"} & names  # of `standard`: the same state
  found = results.from_json((out / "results.json").read_text())
  assert [one.alignment.model for one in found] == [f"run, step {STEPS}", "llama"]
  assert all(one.alignment.model in report for one in found)
  run, llama = found
  assert run.heat.tokens[0] == "<|endoftext|>" and "".join(run.heat.tokens[1:]) == "depth␣width"
  assert llama.heat.tokens[0] == "<s>" and "".join(llama.heat.tokens[1:]).endswith("width")
  assert run.alignment.readings["closed"]["all"].num_tokens == 128 - 128 // trained.T
  assert len(llama.sensitivities) == 1 and not run.sensitivities
  page = (out / "report.html").read_text()
  assert f"<h2>run, step {STEPS}</h2>" in page and "<h2>llama</h2>" in page


@pytest.mark.slow
def test_numbers_are_json_that_others_read(root, report):
  found = json.loads((root / "out" / "results.json").read_text())
  group = found["models"][0]["alignment"]["readings"]["closed"]["all"]
  assert len(group["metrics"]["next_rank"]) == 1 + 2 * 3


LLAMA = ("--hf={root}/llama", "--data={root}/text/0.txt")
MISTAKES = [
  ([], ["no model", "--checkpoint", "--hf"]),
  (["--checkpoint={root}/text"], ["--checkpoint", "text", "no checkpoint"]),
  (["--hf={root}/text"], ["text", "config.json"]),
  (["--hf={root}/llama"], ["no text", "--data"]),
  ([*LLAMA, "--text= "], ["--text is empty"]),
  ([*LLAMA, "--text=s"], ["--text='s'", "one token", "two tokens"]),
  ([*LLAMA, "--text=" + 40 * "gate "], ["121 tokens of llama", "96", "shorter"]),
  ([*LLAMA, "--out=/dev/null/x"], ["cannot write to /dev/null/x", "--out"]),
  (["--hf={root}/llama", "--data=nowhere/x"], ["--data", "nowhere/x"]),
  ([*LLAMA, "--readings=shut"], ["shut", "closed, read"]),
  ([*LLAMA, "--sensitivity={root}/llama/config.json"], ["resjax intervene"]),
]
GOOD = [*LLAMA, "--tokens=64", "--readings=closed", "--text=depth width", "--out={root}/good"]
# All in one process: each would spend seconds on its start.
ONE_AFTER_ANOTHER = """
import json, sys
from absl import flags
from resjax.cli.commands import analyze
for arguments in json.loads(sys.argv[1]):
  flags.FLAGS.unparse_flags()
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  flags.FLAGS(["analyze", *arguments])
  try:
    analyze.main()
    print("=", json.dumps(None))
  except ValueError as error:
    print("=", json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def refusals(root):
  """What is said to each of MISTAKES."""
  cases = [[flag.format(root=root) for flag in flags] for flags, _ in MISTAKES]
  for number, flags in enumerate(cases):
    if not any(flag.startswith("--out") for flag in flags):
      flags.append(f"--out={root / 'refused' / str(number)}")
  cases.append([flag.format(root=root) for flag in GOOD])
  process = start([sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(cases)])
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  return [json.loads(line[1:]) for line in output.splitlines() if line.startswith("=")]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_one_line_and_leave_nothing(root, refusals, number):
  said = refusals[number]
  assert said is not None and "\n" not in said
  assert all(word in said for word in MISTAKES[number][1]), said
  assert not list((root / "refused" / str(number)).rglob("*"))


@pytest.mark.slow
def test_a_good_command_after_them(root, refusals):
  assert refusals[-1] is None
  (found,) = results.from_json((root / "good" / "results.json").read_text())
  assert found.heat.tokens[0] == "<s>" and "".join(found.heat.tokens[1:]).endswith("width")
  assert len(list((root / "good" / "plots").glob("1_*.png"))) == 11
  assert (root / "good" / "report.html").exists()


def test_a_mistake_on_the_command_line():
  code, output = run("--checkpoint=nowhere")
  assert code == 1
  assert output.startswith("error: --checkpoint='nowhere'") and output.count("\n") == 1, output


# In a process of its own: the commands define flags of the same names.
SHOWN = """
from types import SimpleNamespace
import numpy as np
from resjax.cli.actions import analysis
batch = {"inputs": np.arange(10, 16)[None], "segment_ids": np.array([[1, 1, 1, 2, 2, 0]])}
print("=", analysis.shown_tokens(None, SimpleNamespace(batches=[batch]), None).tolist())
"""


def test_the_text_that_is_shown_is_one_document():
  process = start([sys.executable, "-c", SHOWN])
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0 and output.endswith("= [10, 11, 12]\n"), output


@pytest.mark.slow
def test_ctrl_c_leaves_no_half_page(checkpoint, tmp_path):
  flags = [f"--checkpoint={checkpoint}", "--tokens=64", f"--out={tmp_path / 'out'}"]
  process = start(command(*flags))
  deadline = time.monotonic() + 300
  while not (tmp_path / "out" / "plots").exists():  # it draws
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 130 and "Traceback" not in output, output
  assert not (tmp_path / "out" / "report.html").exists()
  assert not list((tmp_path / "out").glob(".*"))
