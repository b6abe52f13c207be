"""Pages: commands that they show run, flags that they name exist, and the gallery has every system.

`make docs` builds the site, and fails for dead links. READMEs of launchers and the page of the
first TPU run need stand-ins of cloud tools, and have tests of their own in tests/launch.
"""

import importlib.util
import re

import pytest

from configs import tiny
from resjax import combinators
from resjax.shipped import completion
from tests.helpers import doc_commands, trained
from tests.helpers.stand_ins import ROOT, StandIns

DOCS = ROOT / "docs"
PAGES = [
  *sorted(page for page in DOCS.rglob("*.md") if "generated" not in page.parts),
  *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]
PROGRAMS = ("python", "python3", "pip", "make", "resjax", "vllm", "curl")
# What is added to a command so that it takes seconds. Others are too dear: their flags are checked.
CHEAP = {
  "train": (),  # --dry_run, see doc_commands.DRY
  "sweep": ("--print_commands",),
  "analyze": ("--tokens=128",),
  "intervene": ("--tokens=128",),
  "generate": ("--num_tokens=2",),
  "export": (),
}
PLACEHOLDERS = {
  "FOLDER": "runs/standard",
  "TEXT": "text.txt",
  "FILE": "configs/ablations/compare.py",
}
# A virtual environment, and a loop over the folders of a sweep that this test does not run.
_LEFT_OUT = re.compile(r"\.venv/bin/|^\. env[^\n]*|^for .*?^done$", re.MULTILINE | re.DOTALL)


def site_module(name):
  """Returns a module that builds the site."""
  spec = importlib.util.spec_from_file_location(name, DOCS / "site" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_pictures_show_every_system():
  pictures = site_module("pictures")
  assert set(pictures.FLOWS) == set(combinators.names())
  for name in pictures.FLOWS:
    drawn = pictures.svg(name)
    assert drawn.startswith("<div") and drawn.endswith("</svg></div>")
    longest = max(len(text) for text in re.findall(r">([^<>]+)</text>", drawn))
    assert longest <= 26  # what fits into the widest box


def test_gallery_has_every_system(monkeypatch):
  monkeypatch.syspath_prepend(str(DOCS / "site"))
  pages = site_module("gallery").pages()
  assert tuple(pages) == combinators.names()
  for name, page in pages.items():
    assert f"# `{name}`" in page and "{" not in re.sub(r"<svg.*</svg>|\{eval-rst\}", "", page)


def test_docstrings_become_restructured_text():
  lines = ["A * b, `x * y`s and v_.", "", "  z = 1", "", "Args:", "  **kwargs: a | b.", ""]
  site_module("docstrings").to_rst(None, "class", "A", None, None, lines)
  assert lines == [
    r"A \* b, ``x * y``\ s and v\_.", "", "::", "", "    z = 1", "", "Args:",
    r"  **kwargs: a | b.", "",
  ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder as a reader has it, with the runs that pages name: all are one run of two steps."""
  root = tmp_path_factory.mktemp("reader")
  config = tiny.get_config()
  config.workdir = str(root / "runs" / "standard")
  config.data.root = str(root / "data")
  config.model.update(d_model=32, mlp_dim=64)
  config.model.residual.name = "standard"
  config.optim.warmup_steps = 1
  config.train.update(steps=2, eval_rows=8, alignment_every=0)
  trained.run(config)
  for name in ("tiny", "blocks", "gate", "a", "b", "tuned", "parent", "two"):
    (root / "runs" / name).symlink_to(root / "runs" / "standard")
  (root / "stranger").mkdir()
  (root / "stranger" / "run").symlink_to(root / "runs" / "standard")
  for name in ("text.txt", "text.md"):
    (root / name).write_text("A short text of one line. " * 400)
  (root / "docs").mkdir()
  (root / "configs").symlink_to(ROOT / "configs")
  return root


@pytest.mark.slow
@pytest.mark.parametrize(
  "page", [page for page in PAGES if page.stem != "first_tpu_run"], ids=lambda page: page.stem
)
def test_commands_run(page, folder, tmp_path):
  tools = StandIns(tmp_path, *PROGRAMS)
  shell = _LEFT_OUT.sub("", doc_commands.script(page))
  for name, value in PLACEHOLDERS.items():
    shell = re.sub(rf"\b{name}\b", value, shell)
  done = tools.bash(shell, cwd=folder)
  assert done.returncode == 0, done.stderr
  for call in tools.calls:
    if found := doc_commands.of_resjax(call.argv):
      name, arguments = found
      run_or_check(name, arguments, folder, num_devices=32 if page.stem == "sharding" else 1)


def run_or_check(name, arguments, folder, num_devices):
  if name == "completion":  # of the command `resjax` itself
    assert completion.script(*arguments, ["train"])
    return
  dear = name not in CHEAP and not (name == "inspect" and "--what=lens" not in arguments)
  if dear:
    said = doc_commands.wrong_flags(name, arguments, folder)
    assert not said, (name, arguments, said)
    return
  devices = f"--xla_force_host_platform_device_count={num_devices}"
  more = [] if name == "inspect" else CHEAP[name]
  code, output = doc_commands.run(name, arguments, *more, cwd=folder, XLA_FLAGS=devices)
  assert code == 0, (name, arguments, output)
