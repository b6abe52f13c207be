"""What the record of a run says of the source that trained it."""

import subprocess

from resjax.train.runs import environment


def test_a_commit_of_a_project_around_the_environment_is_not_that_of_resjax(tmp_path, monkeypatch):
  def git(*words):
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)
    return done.stdout.decode().strip()

  source = tmp_path / "venv" / "environment.py"
  source.parent.mkdir()
  source.touch()
  monkeypatch.setattr(environment, "__file__", str(source))
  git("init", "--quiet")
  git("commit", "--quiet", "--allow-empty", "--message=a project")
  assert environment.code_version() is None
  git("add", ".")
  git("commit", "--quiet", "--message=its own copy")
  assert environment.code_version() == git("rev-parse", "HEAD")
