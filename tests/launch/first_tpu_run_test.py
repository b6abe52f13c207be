"""docs/first_tpu_run.md: its commands run, and its Dockerfile's words are those of this project."""

import configparser
import importlib.util
import re

import pytest

from tests.data.conftest import make_texts, write_folder
from tests.helpers import doc_commands
from tests.helpers.fakes import ROOT, FakeTools

PAGE = ROOT / "docs" / "first_tpu_run.md"
TOOLS = ["gcloud", "python3", "source", "pip", "hf", "resjax", "tensorboard", "kubectl", "docker"]
# Tiny, and nothing that is downloaded.
SMALL = {
  "config.train.batch_size": 16,
  "config.train.microbatches": 1,
  "config.model.num_layers": 2,
  "config.model.d_model": 48,
  "config.data.seq_len": 32,
  "config.data.tokenizer.name": "byte",
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
  folder = tmp_path_factory.mktemp("page")
  (folder / ".venv" / "bin").mkdir(parents=True)
  (folder / ".venv" / "bin" / "activate").touch()
  return doc_commands.calls(PAGE, FakeTools(folder / "tools", *TOOLS), cwd=folder)


@pytest.mark.slow
def test_commands(calls, tmp_path):
  write_folder(tmp_path / "text", make_texts(200))
  (tmp_path / ".git").mkdir()
  (tmp_path / "setup.py").touch()
  (tmp_path / "runs" / "slurm").mkdir(parents=True)
  (tmp_path / "runs" / "slurm" / "first-7.log").touch()
  found = [command for words in calls if (command := doc_commands.of_resjax(words))]
  words = {" ".join([name, *arguments[:1]]) for name, arguments in found if name in ("tpu", "gke")}
  assert {"tpu create", "tpu run", "tpu watch", "tpu resume", "tpu delete", "gke run"} <= words
  # Every launcher is called with --dry_run here, so what differs in it alone is run once.
  different = {(name, *(word for word in words if word != "--dry_run")) for name, words in found}
  for name, *arguments in sorted(different):
    if arguments[0] == "watch" or name == "report":
      continue  # there is no run; tests/launch/watching_test.py has one
    small = [f"--{key}={value}" for key, value in SMALL.items()]
    if name == "build_dataset":
      local = f"--config.data.root={tmp_path}/data", "--config.data.corpora.web.format=text"
      small += [*local, f"--config.data.corpora.web.source={tmp_path}/text"]
    code, output = doc_commands.run(
      name, arguments, *(small if name in ("build_dataset", "aot") else ()), cwd=tmp_path
    )
    if name == "aot" and importlib.util.find_spec("libtpu") is None:
      assert code == 1 and output.startswith("error: --topology=v5litepod-16 needs libtpu"), output
    else:
      assert code == 0, output


def test_what_trains_is_checked_with_the_slice(calls, tmp_path):
  create = next(
    arguments
    for words in calls
    if words[:3] == ["resjax", "tpu", "create"]
    for arguments in [words]
  )
  code, output = doc_commands.run("tpu", create[2:], "--nofit", cwd=tmp_path)
  assert code == 0, output
  assert "#   mesh   ok: 16 devices: data 16; 4 rows per device and microbatch" in output
  assert output.count("#   bucket not checked") == 2 and "#   source not checked" in output


def test_dockerfile():
  text = (ROOT / "Dockerfile").read_text()
  setup = configparser.ConfigParser()
  setup.read(ROOT / "setup.cfg")
  extras = re.findall(r"EXTRAS=([\w,]+)", text + PAGE.read_text())
  assert len(extras) >= 4
  assert {name for one in extras for name in one.split(",")} <= {*setup["options.extras_require"]}
