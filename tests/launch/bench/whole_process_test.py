"""What a process took is what it took itself."""

import sys
from pathlib import Path

import pytest

from launch.bench import whole_process


def run(code, limit=60.0, **options):
  return whole_process.run(
    [sys.executable, "-c", code], Path.cwd(), {"WORD": "a"}, limit, **options
  )


def test_memory_is_that_of_the_process_not_of_this_one():
  held = bytearray(200_000_000)
  held[::4096] = b"x" * len(held[::4096])
  assert run("import time; time.sleep(0.1)").peak_bytes < 100_000_000
  made = "import time; held = b'x' * 200_000_000; time.sleep(0.2)"
  assert run(made).peak_bytes > 200_000_000


def test_what_is_printed_and_the_seconds_of_cores():
  used = run(
    "import os, sys; print(os.environ['WORD']); print('b', file=sys.stderr); sum(range(10**7))"
  )
  assert used.said == "a\n" and used.core_seconds > 0 and used.seconds > 0


def test_a_failure_and_a_limit_are_errors():
  with pytest.raises(ValueError, match=r"ended with 3: words$"):
    run("import sys; print('words'); sys.exit(3)")
  with pytest.raises(ValueError, match="ended with -9"):
    run("import time; time.sleep(60)", limit=0.1)


def test_a_process_is_killed_once_enough_has_happened():
  assert run("import time; time.sleep(60)", enough=lambda: True).seconds < 30
