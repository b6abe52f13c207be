import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from resjax.data.build_table import build_and_show
from tests.data.conftest import make_texts, write_folder
from tests.helpers import forks

ROOT = Path(__file__).parents[2]


def _run(*arguments):
  command = [sys.executable, "-m", "resjax", "build_dataset", *arguments]
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "80"}
  return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


def _config(tmp_path, *settings):
  root = f"data.root={tmp_path / 'root'}"
  return ["--config=configs/base.py", *(f"--config.{setting}" for setting in (root, *settings))]


@pytest.mark.slow
def test_builds_a_folder_and_shows_counts(tmp_path):
  texts = make_texts(60)
  folder = write_folder(tmp_path / "text", [*texts, texts[0]])
  source = f"data.corpora.stdlib.source={folder}"
  arguments = _config(tmp_path, source, "data.tokenizer.name=byte", "data.seq_len=32")
  result = _run(*arguments)
  assert result.returncode == 0 and result.stderr == ""
  assert "packing stdlib train" in result.stdout
  assert (
    "stdlib: dropped 1 duplicate (0060.txt#0), 0 empty, 0 undecodable; all are in" in result.stdout
  )
  rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
  documents = {row[1]: int(row[2]) for row in rows if row[0] == "stdlib"}
  assert documents.keys() == {"train", "validation", "test"}
  assert sum(documents.values()) == 60
  again = _run(*arguments)
  assert again.returncode == 0 and "packing" not in again.stdout


def test_mistakes_are_one_line(tmp_path):
  source = "data.corpora.stdlib.source"
  run = forks.command("build_dataset")
  for arguments, *words in (
    (_config(tmp_path, f"{source}={tmp_path}/nope"), f"config.{source}", f"{tmp_path}/nope"),
    (_config(tmp_path, "data.seq_length=8"), "seq_length", '"seq_len"'),
    (_config(tmp_path, "data.seq_len=1"), "config.data.seq_len is 1"),
    ([], "--config="),
  ):
    code, output = run(*arguments)
    assert code == 1
    assert output.startswith("error: ") and output.count("\n") == 1
    assert all(word in output for word in words), output


def test_bar_on_a_terminal(folder_config):
  stream = io.StringIO()
  console = Console(file=stream, force_terminal=True, width=100)
  summary = build_and_show(folder_config({"a": make_texts(60)}, tokenizer="bpe"), console)
  shown = stream.getvalue()
  for stage in ("writing a train", "learning the tokenizer", "packing a train"):
    assert stage in shown
  assert f"{summary.corpora['a'].splits['train'].rows:,}" in shown
  # A stage whose length is not known has no total, where rich would show 100.
  plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
  assert re.search(r"reading a .* [0-9]+/\? ", plain) and "/100 " not in plain


def test_what_is_dropped_is_named_and_listed(tmp_path):
  texts = make_texts(20)
  folder = write_folder(tmp_path / "text", [*texts, *[texts[0]] * 12])
  (folder / "latin.txt").write_bytes("café".encode("latin-1"))
  os.mkfifo(folder / "pipe")
  names = ["--config.data.tokenizer.name=byte", "--config.data.seq_len=32"]
  run = forks.command("build_dataset")
  arguments = [*_config(tmp_path, f"data.corpora.stdlib.source={folder}"), *names]
  for _ in range(2):  # also where the data are there
    code, output = run(*arguments)
    flat = " ".join(output.split())
    first = ", ".join(f"00{number}.txt#0" for number in range(20, 30))
    assert code == 0 and f"dropped 12 duplicate ({first} and 2 more), 0 empty" in flat
    assert "1 undecodable (latin.txt#0), 1 no regular file (pipe); all are in" in flat
  (listed,) = tmp_path.glob("root/corpora/*/dropped.tsv")
  lines = listed.read_text().splitlines()
  assert len(lines) == 14 and lines[:2] == ["no regular file\tpipe", "duplicate\t0020.txt#0"]
  assert lines[-1] == "undecodable\tlatin.txt#0"
