"""Eight CPU devices for every test, set before anything imports JAX; buckets of a fake GCS."""

import ctypes
import gc
import os
import pathlib
import signal
import sys
import tempfile
import time
import uuid

import pytest

from tests.helpers import xla

_BEGAN = time.monotonic()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of small matrices; idle threads spin
if xla.devices(8) not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla.devices(8)}".strip()

# A program is compiled once for all tests, workers and the processes that they start. The folder is
# removed by the process that made it; one that is named outside keeps its programs.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  _programs = tempfile.TemporaryDirectory(prefix="resjax-programs-")
  os.environ["JAX_COMPILATION_CACHE_DIR"] = _programs.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# No test reads where in a file an operation comes from, which costs 7 % of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# Tracing makes garbage fast, and a collection walks all that is there: one for every 700 objects
# would take 6 % of the time.
gc.set_threshold(20_000, 20, 20)

# What runs in the background ignores Ctrl-C, and so would the processes that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config):
  """Returns the workers of `-n auto`: one more than cores, and 3 GB of memory for each of them.

  Tests of commands wait for what they start, and the others take the core meanwhile.
  """
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  return max(1, min(cores + 1, _memory() // 3_000_000_000))


def _memory():
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _share_of_memory():
  """Returns the bytes that a worker may hold: its part of half of the memory, 2 to 4 GB."""
  workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
  return min(max(2_000_000_000, _memory() // 2 // workers), 4_000_000_000)


def pytest_addoption(parser):
  parser.addoption(
    "--minutes", type=float, default=float("inf"), help="skip the tests that begin later than this"
  )


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item):
  """Leaves out what a machine is too slow for; the report has it among the skipped ones."""
  if time.monotonic() - _BEGAN > 60 * item.config.getoption("minutes"):
    pytest.skip("no time was left, see --minutes")


def pytest_collection_modifyitems(config, items):
  """Puts files that start processes first, so that none of them is left alone at the end.

  With a limit of time they are last: in their place many others can run.
  """
  rooms = [pathlib.Path(__file__).parent / name for name in ("train", "launch", "study/analysis")]
  limited = config.getoption("minutes") < float("inf")
  items.sort(key=lambda item: limited == any(item.path.is_relative_to(room) for room in rooms))


@pytest.fixture(autouse=True)
def bounded_memory():
  """Drops compiled programs after a test when the process has grown to its share of the memory.

  Every program holds more than a megabyte. To drop them takes seconds, and what later tests share
  with earlier ones is traced and compiled again. They also hold mappings, of which a process may
  have 65,530: with more the compiler crashes.
  """
  yield
  if "jax" not in sys.modules or not _PROCESS.exists():
    return
  _allowed["tests"] -= 1
  mappings = 0
  if _allowed["tests"] == 0:  # to count them takes time
    _allowed["tests"] = 20
    mappings = (_PROCESS / "maps").read_bytes().count(b"\n")
  if _resident() > _allowed["bytes"] or mappings > 30_000:
    sys.modules["jax"].clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # without it the freed memory stays with the process
    _allowed["bytes"] = max(_allowed["bytes"], _resident() + 1_000_000_000)


_PROCESS = pathlib.Path("/proc/self")  # of Linux alone, as `malloc_trim` is
# What a worker may hold, and how many tests run until its mappings are counted.
_allowed = {"bytes": _share_of_memory(), "tests": 20}


def _resident():
  return int((_PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def without_promotion():
  """Forbids JAX to add axes or to widen dtypes by itself, as the program of a user may."""
  import jax  # few tests need it

  with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
    yield


@pytest.fixture(scope="session")
def gcs_server():
  """One for all: clients keep what they learned about it."""
  if sys.version_info[:2] == (3, 12):
    pytest.skip("gcsfs 2026.10 crashes CPython 3.12.1 while Orbax writes; 3.11 and 3.13 are fine")
  from tests.helpers import fake_gcs  # what it needs, few tests do

  with fake_gcs.serve() as server:
    yield server


@pytest.fixture
def gcs(gcs_server, monkeypatch):
  """The server, with the environment that leads there."""
  for name, value in gcs_server.environment.items():
    monkeypatch.setenv(name, value)
  return gcs_server


@pytest.fixture
def bucket(gcs):
  """Name of a new bucket."""
  name = f"bucket-{uuid.uuid4().hex[:8]}"
  gcs.buckets.add(name)
  return name


@pytest.fixture
def no_tpu(monkeypatch):
  """What libtpu asks a machine without a TPU about."""
  from resjax.aot.absent_devices import ENVIRONMENT  # few tests need it

  for name, value in ENVIRONMENT.items():
    monkeypatch.setenv(name, value)
