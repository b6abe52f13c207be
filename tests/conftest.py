"""Eight CPU devices for every test, set before anything imports JAX; buckets of a fake GCS."""

import os
import signal
import sys
import uuid

import pytest

from tests.helpers import xla

os.environ["JAX_PLATFORMS"] = "cpu"
if xla.devices(8) not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla.devices(8)}".strip()

# What runs in the background ignores Ctrl-C, and so would the processes that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


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
