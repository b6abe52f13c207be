"""The commands in the launchers' READMEs are ones that the launchers accept, as they stand."""

import pytest

from tests.data.conftest import write_folder
from tests.helpers import doc_commands
from tests.helpers.fakes import ROOT, FakeTools

READMES = sorted((ROOT / "launch").glob("*/README.md"))


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_commands(readme, tmp_path):
  for name in ("configs", "setup.py"):
    (tmp_path / name).symlink_to(ROOT / name)
  (tmp_path / ".git").mkdir()
  write_folder(tmp_path / "text" / "web", ["a text"])
  (tmp_path / "runs" / "slurm").mkdir(parents=True)
  (tmp_path / "runs" / "slurm" / "run1-7.log").touch()
  tools = FakeTools(tmp_path / "tools", "python", "resjax", "docker")
  calls = doc_commands.calls(readme, tools, cwd=tmp_path)
  found = [command for words in calls if (command := doc_commands.of_resjax(words))]
  assert readme.parent.name in {name for name, _ in found}
  for name, arguments in found:
    code, output = doc_commands.run(name, arguments, cwd=tmp_path)
    assert code == 0, output


def test_each_launcher_has_one():
  launchers = {path.parent.name for path in (ROOT / "launch").glob("*/__main__.py")} - {"bench"}
  assert launchers == {readme.parent.name for readme in READMES} >= {"tpu", "gke", "slurm", "local"}
