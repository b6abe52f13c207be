"""Every command that a page prints runs, and every extra that it installs exists."""

import configparser
import json
import re
import shutil

import jax
import pytest

from configs import tiny
from tests.data.conftest import make_texts, write_folder
from tests.helpers import cheap_forms, doc_commands, gguf_files, ladders, pretrained, trained
from tests.helpers.fakes import ROOT, FakeTools

DOCS = ROOT / "docs"
# The others have tests with fakes of cloud tools, in tests/launch.
PAGES = [
  page
  for page in doc_commands.PAGES
  if page.stem != "first_tpu_run" and not page.is_relative_to(ROOT / "launch")
]
PROGRAMS = ("python", "python3", "pip", "make", "resjax", "vllm", "curl")
PLACEHOLDERS = {
  "FOLDER": "runs/standard",
  "TEXT": "text.txt",
  "FILE": "configs/ablations/compare.py",
  "/usr/share/licenses": "notes.txt",
  ",hellaswag": "",  # downloaded; tests/interop/lm_eval runs tasks of the harness
}
_ACTIVATE = re.compile(r"^\. env[^\n]*|\.venv/bin/", re.MULTILINE)


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
  one_parent = shutil.copytree(DOCS / "findings" / "one_parent", root / "runs" / "one_parent")
  (one_parent / "unchanged").mkdir()
  (one_parent / "unchanged" / "seed_1").symlink_to(root / "runs" / "standard")
  ladders.write(root / "runs" / "ladder_toy")
  add_texts(root)
  for name in ("findings", "systems", "examples"):
    shutil.copytree(DOCS / name, root / "docs" / name)
  shutil.copy(DOCS / "systems.md", root / "docs")
  costs = root / "docs" / "systems" / "costs.json"  # of this JAX, so that none is compiled again
  costs.write_text(re.sub(r'"jax": ".*?"', f'"jax": "{jax.__version__}"', costs.read_text()))
  (root / "configs").symlink_to(ROOT / "configs")
  return root


def add_texts(root):
  """Adds the texts and the folder of Hugging Face that pages score and train on."""
  for name in ("text.txt", "text.md", "notes.txt", "wiki.test.raw", "wikitext2_valid.txt"):
    (root / name).write_text("A short text of one line. " * 400)
  write_folder(root / "wikitext-2-raw-v1", make_texts(20))
  (root / "fineweb").mkdir()  # with enough documents for 2 % of them
  rows = (json.dumps({"text": text}) for text in make_texts(500))
  (root / "fineweb" / "0.jsonl").write_text("\n".join(rows))
  (root / "paloma" / "c4" / "val").mkdir(parents=True)
  (root / "paloma" / "c4" / "val" / "0.txt").write_text("A text of one domain. " * 20)
  (root / "tasks").mkdir()
  rows = [{"text": "the depth of a layer is width"}, {"text": "query the gate"}]
  (root / "tasks" / "lambada_openai.jsonl").write_text("\n".join(map(json.dumps, rows)))
  pretrained.folder(root, "gpt2")
  of_any_length = pretrained.folder(root, "llama")
  for name in ("smollm2-135m", "gemma3-270m"):
    (root / name).symlink_to(of_any_length)
    gguf_files.write(root / f"{name}.gguf", "llama")


@pytest.fixture(scope="module")
def calls(folder, tmp_path_factory):
  """The words of every command, by page."""
  found = {}
  for page in PAGES:
    tools = FakeTools(tmp_path_factory.mktemp("tools"), *PROGRAMS)
    shell = _ACTIVATE.sub("", doc_commands.script(page))
    for name, value in PLACEHOLDERS.items():
      shell = re.sub(rf"(?<![A-Z_]){name}\b", value, shell)
    done = tools.bash(shell, cwd=folder)
    assert done.returncode == 0, (page, done.stderr)
    found[page] = [call.argv for call in tools.calls]
  return found


@pytest.mark.slow
def test_every_command_has_a_cheap_form_or_a_reason(calls):
  every = [words for found in calls.values() for words in found]
  keys = {cheap_forms.key_of(words) for words in every}
  assert None not in keys, [words for words in every if cheap_forms.key_of(words) is None]
  for reason in cheap_forms.ELSEWHERE.values():
    assert all((ROOT / path).exists() for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason))
  assert cheap_forms.ELSEWHERE.keys() <= keys  # no exception for what no page prints


def extras():
  """The names of the extras that setup.cfg has."""
  setup = configparser.ConfigParser()
  setup.read(ROOT / "setup.cfg")
  return {*setup["options.extras_require"]}


@pytest.mark.slow
def test_extras_that_pages_install_exist(calls):
  words = " ".join(word for found in calls.values() for words in found for word in words)
  asked = {name for names in re.findall(r"\[([\w,]+)\]", words) for name in names.split(",")}
  assert "train" in asked and asked <= extras()


def test_every_extra_is_explained():
  page = (DOCS / "installation.md").read_text()
  rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
  assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(extras())


def test_every_page_is_in_the_table_of_contents():
  """As sphinx asks for, which is built only in CI."""
  trees = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
  listed = {line for tree in trees for line in tree.splitlines() if not line.startswith(":")}
  pages = [*DOCS.glob("*.md"), *DOCS.glob("findings/*.md"), *DOCS.glob("notebooks/*.ipynb")]
  names = {str(page.relative_to(DOCS).with_suffix("")) for page in pages}
  assert names - listed == {"index"}


# Their commands take minutes, even in the cheap form.
LONG = ("causal_shift", "real_models", "kernels", "depth")


@pytest.mark.slow
@pytest.mark.parametrize(
  "page",
  [
    pytest.param(page, marks=pytest.mark.release if page.stem in LONG else (), id=page.stem)
    for page in PAGES
    if doc_commands.script(page)
  ],
)
def test_commands_run(page, calls, folder):
  for words in calls[page]:
    cheap_forms.run(words, folder, num_devices=32 if page.stem == "sharding" else 1)
