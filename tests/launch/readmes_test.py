"""The commands in the launchers' READMEs are ones that the launchers accept."""

import re
import sys

import pytest

from tests.helpers.stand_ins import ROOT, StandIns

READMES = sorted((ROOT / "launch").glob("*/README.md"))


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_commands(readme, tmp_path):
  blocks = re.findall(r"^```\n(.*?)^```", readme.read_text(), re.MULTILINE | re.DOTALL)
  text = "\n".join(block for block in blocks if "python -m launch" in block)
  dry, count = re.subn(r"(python -m launch\.(?!train)\w+(?: [a-z]+)?)", r"\1 --dry_run", text)
  assert count
  tools = StandIns(tmp_path / "tools", "python")
  tools.answer("^python", run=f'exec {sys.executable} "$@"')
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  (tmp_path / "runs" / "slurm").mkdir(parents=True)
  (tmp_path / "runs" / "slurm" / "run1-7.log").touch()
  done = tools.bash(dry, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert len(tools.calls) == count


def test_each_launcher_has_one():
  launchers = {path.parent.name for path in (ROOT / "launch").glob("*/__main__.py")} - {"bench"}
  assert launchers == {readme.parent.name for readme in READMES} >= {"tpu", "gke", "slurm", "local"}
