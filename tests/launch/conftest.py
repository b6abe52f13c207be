"""A cloud of four hosts, and code to bring there."""

import subprocess
import sys

import pytest

from tests.helpers import checkouts
from tests.helpers.fakes import FakeTools


@pytest.fixture
def cloud(tmp_path):
  """gcloud that keeps one queued resource, in the file `state`, and four hosts, folders."""
  tools = FakeTools(tmp_path / "tools", "gcloud", "python3")
  tools.state = tmp_path / "state"
  tools.homes = [tmp_path / f"host{number}" for number in range(4)]
  for home in tools.homes:
    home.mkdir()
  each = f"for host in {' '.join(map(str, tools.homes))}; do export HOME=$host; cd $host;"
  tools.answer("queued-resources create", run=f"echo ACTIVE > {tools.state}")
  tools.answer("queued-resources delete", run=f"rm {tools.state}")
  tools.answer("queued-resources list", run=f"if [ -e {tools.state} ]; then cat {tools.state}; fi")
  tools.answer(
    "resources scp",
    run=f'{each} cat "$5" > "$host/${{6#*:}}"; done',
  )
  tools.answer("resources ssh", run=each + ' bash -c "${CALL##*--command=}" || exit 1; done')
  python = f"mkdir -p resjax-venv/bin; ln -sf {sys.executable} resjax-venv/bin/python"
  tools.answer("^python3 -m uv venv", run=python)
  return tools


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
  """A committed copy of what the launcher needs, so that this one may be dirty."""
  folder = tmp_path_factory.mktemp("checkout")
  checkouts.copy(folder, "launch", "configs", "resjax", "setup.py")
  (folder / ".gitignore").write_text("__pycache__/\n")
  identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
  for words in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-mx"]):
    subprocess.run(["git", *words], cwd=folder, check=True)
  return folder
