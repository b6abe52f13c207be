"""Commands that measure and sample, in two processes: they find together what one finds."""

import json
import math
import sys

import pytest

from tests.helpers import pretrained, trained
from tests.helpers.runs import ends, finish, free_port, start, write_text

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  root = write_text(tmp_path_factory.mktemp("together"))
  pretrained.folder(root)  # llama
  trained.run(trained.settings(root, root / "run", "attn_res"))
  return root


def command(name, *flags):
  return [sys.executable, "-m", "resjax", name, *map(str, flags)]


def together(arguments, more=((), ())) -> list[str]:
  """Runs a command in two processes, each with flags of its own; returns what they print."""
  place = {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": 2}
  processes = [
    start([*arguments, *own], **place, JAX_PROCESS_ID=index) for index, own in enumerate(more)
  ]
  found = ends(processes)
  assert [code for code, _ in found] == [0, 0], found
  return [output for _, output in found]


def check(found, want, where=""):
  """Both are the same JSON, numbers up to rounding."""
  assert type(found) is type(want), where
  if isinstance(want, dict):
    assert found.keys() == want.keys(), where
    for key in want:
      check(found[key], want[key], f"{where}/{key}")
  elif isinstance(want, list):
    assert len(found) == len(want), where
    for index, pair in enumerate(zip(found, want, strict=True)):
      check(*pair, f"{where}/{index}")
  elif isinstance(want, float):
    assert math.isclose(found, want, rel_tol=1e-4, abs_tol=1e-5), (where, found, want)
  else:
    assert found == want, where


def test_analyze(root):
  text = [f"--data={root / 'text' / '0.txt'}", "--tokens=128", "--batch_size=4", "--seq_len=32"]
  arguments = command("analyze", f"--hf={root / 'llama'}", *text, "--text=depth width")
  outs = [f"--out={root / name}" for name in ("first", "second")]
  printed = together(arguments, [[out, "--fsdp=2"] for out in outs])
  assert str(root / "first" / "report.html") in printed[0] and "llama" in printed[0]
  assert "llama" not in printed[1] and not (root / "second").exists()
  finish([*arguments, f"--out={root / 'alone'}"])
  found, alone = (json.loads((root / n / "results.json").read_text()) for n in ("first", "alone"))
  check(found, alone)
  names = [{path.name for path in (root / n / "plots").iterdir()} for n in ("first", "alone")]
  assert names[0] == names[1]


@pytest.mark.release
def test_intervene(root):
  text = [f"--data={root / 'text' / '0.txt'}", "--tokens=128", "--batch_size=4", "--seq_len=32"]
  arguments = command("intervene", f"--hf={root / 'llama'}", *text, "--alphas=0", "--layers=1")
  outs = [f"--out={root / name / 'cuts.json'}" for name in ("a", "b")]
  printed = together(arguments, [[out, "--fsdp=2"] for out in outs])
  assert str(root / "a" / "cuts.json") in printed[0] and "cuts" not in printed[1]
  finish([*arguments, f"--out={root / 'c' / 'cuts.json'}"])
  check(*(json.loads((root / n / "cuts.json").read_text()) for n in ("a", "c")))
  assert not (root / "b").exists()


@pytest.mark.parametrize("what", ["lens", "attribution"])
@pytest.mark.release
def test_inspect(root, what):
  text = [f"--data={root / 'text' / '0.txt'}", "--tokens=400", "--batch_size=4", "--seq_len=16"]
  more = ["--steps=4"] if what == "lens" else []
  arguments = command(
    "inspect", f"--what={what}", f"--hf={root / 'llama'}", *text, *more, "--text=depth"
  )
  outs = [f"--out={root / f'{what}{name}'}" for name in ("a", "b")]
  printed = together(arguments, [[out, "--fsdp=2"] for out in outs])
  assert f"{what}.png" in printed[0] and "png" not in printed[1]
  finish([*arguments, f"--out={root / f'{what}c'}"])
  files = (root / f"{what}{name}" / f"{what}_results.json" for name in ("a", "c"))
  check(*(json.loads(file.read_text()) for file in files))
  assert not (root / f"{what}b").exists()


@pytest.mark.release
def test_generate(root):
  arguments = command(
    "generate", f"--checkpoint={root / 'run'}", "--prompt=width", "--num_tokens=8"
  )
  printed = together([*arguments, "--temperature=0"])
  assert finish([*arguments, "--temperature=0"]) in printed[0]
  assert "width" not in printed[1]
