import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from resjax.data.report import build_and_show
from tests.data.conftest import make_texts, write_folder

ROOT = Path(__file__).parents[2]


def _run(tmp_path, *arguments):
  command = [sys.executable, "-m", "launch.build_dataset", *arguments]
  command += [f"--config.data.root={tmp_path / 'root'}"] if arguments else []
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "80"}
  return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


def _source(path):
  return ["--config=configs/base.py", f"--config.data.corpora.stdlib.source={path}"]


def _assert_one_line_error(result, *parts):
  assert result.returncode == 1
  assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
  assert all(part in result.stderr for part in parts), result.stderr
  assert result.stdout == ""


def test_builds_a_folder_and_shows_counts(tmp_path):
  texts = make_texts(60)
  folder = write_folder(tmp_path / "text", [*texts, texts[0]])
  options = ["--config.data.tokenizer.name=byte", "--config.data.seq_len=32"]
  result = _run(tmp_path, *_source(folder), *options)
  assert result.returncode == 0 and result.stderr == ""
  assert "packing stdlib train" in result.stdout
  assert "stdlib: dropped 1 duplicate, 0 empty, 0 undecodable" in result.stdout
  rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
  documents = {row[1]: int(row[2]) for row in rows if row[0] == "stdlib"}
  assert documents.keys() == {"train", "validation", "test"}
  assert sum(documents.values()) == 60
  again = _run(tmp_path, *_source(folder), *options)
  assert again.returncode == 0 and "packing" not in again.stdout


def test_mistakes_are_one_line(tmp_path):
  missing = _run(tmp_path, *_source(tmp_path / "nope"))
  _assert_one_line_error(missing, "config.data.corpora.stdlib.source", str(tmp_path / "nope"))
  typo = _run(tmp_path, "--config=configs/base.py", "--config.data.seq_length=8")
  _assert_one_line_error(typo, "seq_length", '"seq_len"')
  value = _run(tmp_path, "--config=configs/base.py", "--config.data.seq_len=1")
  _assert_one_line_error(value, "config.data.seq_len is 1")
  _assert_one_line_error(_run(tmp_path), "--config=")


def test_bar_on_a_terminal(folder_config):
  stream = io.StringIO()
  console = Console(file=stream, force_terminal=True, width=100)
  summary = build_and_show(folder_config({"a": make_texts(60)}, tokenizer="bpe"), console)
  shown = stream.getvalue()
  for stage in ("writing a train", "learning the tokenizer", "packing a train"):
    assert stage in shown
  assert f"{summary.corpora['a'].splits['train'].rows:,}" in shown
