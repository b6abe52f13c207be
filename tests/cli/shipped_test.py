"""The command `resjax` finds its commands and configs, from any folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from resjax.__main__ import COMMANDS
from resjax.cli import shipped

ROOT = Path(__file__).parents[2]
NAMES = [name for group in COMMANDS.values() for name in group]


def test_configs_are_found_by_name_and_by_path(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert shipped.root() == ROOT
  assert shipped.config_file("tiny") == ROOT / "configs/tiny.py"
  assert shipped.config_file("ablations/compare") == ROOT / "configs/ablations/compare.py"
  own = tmp_path / "own.py"
  own.touch()
  assert shipped.config_file(str(own)) == own and shipped.config_file("own.py").samefile(own)
  for name in ("tinny", "configs/tiny.py"):
    with pytest.raises(ValueError, match=f"{name}: no such file.* near it: tiny"):
      shipped.config_file(name)
  with pytest.raises(ValueError, match="no config; give one"):
    shipped.config_file("")
  with pytest.raises(ValueError, match="is a folder"):
    shipped.config_file(str(tmp_path))


def test_every_command_is_listed():
  files = [*(ROOT / "launch").glob("*.py"), *(ROOT / "resjax/cli/commands").glob("*.py")]
  modules = [path for path in files if "command.run" in path.read_text()]
  packages = [path.parent for path in (ROOT / "launch").glob("*/__main__.py")]
  assert sorted(path.stem for path in modules + packages) == sorted({*NAMES} - {"completion"})
  page = (ROOT / "docs/commands.md").read_text()
  assert not [name for name in NAMES if f"| `resjax {name} " not in page]


def test_the_command_finds_others_from_any_folder(tmp_path):
  def resjax(*words):
    env = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "COLUMNS": "80"}
    command = [sys.executable, "-m", "resjax", *words]
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

  listed = resjax("--help")
  lines = listed.stdout.splitlines()
  assert listed.returncode == 0 and len(lines) <= 26 and max(map(len, lines)) <= 80
  assert all(f"  {name} " in listed.stdout for name in NAMES)
  unknown = resjax("trian", "--config=tiny")
  assert unknown.returncode == 1 and "did you mean train?" in unknown.stderr
  # What Python looks for first may be the user's: a folder of configs.
  (tmp_path / "configs").mkdir()
  (tmp_path / "mine.py").write_text("from configs import tiny\nget_config = tiny.get_config\n")
  ran = resjax("train", "--config=mine.py", "--dry_run", "--config.model.layers=x")
  assert ran.returncode == 1 and ran.stderr.startswith("error: --config.model.layers"), ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_text_that_cannot_be_written_is_one_line_and_unread_text_none():
  script = """
    "$0" -m resjax --version > /dev/full; echo $?
    { "$0" -m resjax completion bash; echo $? >&2; } | true
  """
  done = subprocess.run(["bash", "-c", script, sys.executable], cwd=ROOT, capture_output=True)
  assert done.stdout == b"1\n"
  assert done.stderr == b"error: [Errno 28] No space left on device\n141\n"
