"""Where compiled programs are kept from one command to the next."""

import os
import subprocess
import sys

import pytest

from resjax.cli import kept_programs

FOLDER = "JAX_COMPILATION_CACHE_DIR"


def test_a_folder_of_the_user_is_named_once(tmp_path, capsys):
  first, second = {"XDG_CACHE_HOME": str(tmp_path)}, {"XDG_CACHE_HOME": str(tmp_path)}
  kept_programs.keep(first)
  (folder,) = (tmp_path / "resjax").iterdir()
  told = capsys.readouterr().err
  assert told == (
    f"compiled programs are kept; with JAX_ENABLE_COMPILATION_CACHE=0 they are not:\n  {folder}\n"
  )
  assert len(told.splitlines()[0]) <= 80
  kept_programs.keep(second)
  assert first == second and first[FOLDER] == str(folder)
  assert capsys.readouterr() == ("", "")


def test_who_asks_for_it_gets_it(tmp_path):
  environment = {"XDG_CACHE_HOME": str(tmp_path), "JAX_ENABLE_COMPILATION_CACHE": "True"}
  kept_programs.keep(environment)
  assert environment[FOLDER].startswith(str(tmp_path))


def test_what_was_read_longest_ago_goes_first(tmp_path, monkeypatch):
  environment = {"XDG_CACHE_HOME": str(tmp_path)}
  kept_programs.keep(environment.copy())
  (folder,) = (tmp_path / "resjax").iterdir()
  for name, age in (("a-cache", 30), ("b-cache", 20), ("c-cache", 10)):
    (folder / name).write_bytes(bytes(100))
    os.utime(folder / name, (10**9 - age, 10**9 - age))
  monkeypatch.setattr(kept_programs, "_MOST", 200)
  kept_programs.keep(environment.copy())
  assert sorted(path.name for path in folder.iterdir()) == ["b-cache", "c-cache"]


def test_a_folder_that_depends_on_where_one_stands_is_not_taken(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  environment = {"XDG_CACHE_HOME": "caches"}
  kept_programs.keep(environment)
  assert environment[FOLDER].startswith(str(tmp_path / "home" / ".cache" / "resjax"))


@pytest.mark.parametrize("name", [FOLDER, "JAX_ENABLE_COMPILATION_CACHE"])
def test_what_somebody_has_said_stays(tmp_path, name):
  environment = {"XDG_CACHE_HOME": str(tmp_path), name: "0"}
  kept_programs.keep(environment)
  assert environment == {"XDG_CACHE_HOME": str(tmp_path), name: "0"}
  assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path):
  (tmp_path / "resjax").write_text("a file, not a folder")
  environment = {"XDG_CACHE_HOME": str(tmp_path)}
  kept_programs.keep(environment)
  assert environment == {"XDG_CACHE_HOME": str(tmp_path)}


@pytest.mark.slow
def test_a_command_keeps_what_it_compiles_and_help_makes_no_folder(tmp_path):
  code = "import jax, os; jax.jit(lambda x: x + 1)(1.0); print(os.environ['" + FOLDER + "'])"
  names = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
  env = names | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path)}

  def resjax(*words):
    command = [sys.executable, "-m", "resjax", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)

  assert resjax("report", "--help").returncode == 0
  assert not list(tmp_path.iterdir())
  assert resjax("train", "--config=tiny", "--check_flags").returncode == 0
  assert not list(tmp_path.iterdir())
  assert resjax("report", str(tmp_path / "none")).stderr.startswith("compiled programs are kept; ")
  (folder,) = (tmp_path / "resjax").iterdir()
  limits = {FOLDER: str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
  done = subprocess.run(
    [sys.executable, "-c", code], env=env | limits, capture_output=True, text=True, timeout=300
  )
  assert done.returncode == 0, done.stderr
  assert list(folder.glob("*-cache"))
