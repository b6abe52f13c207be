"""Eight CPU devices for every test, set before anything imports JAX."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
_DEVICES = "--xla_force_host_platform_device_count=8"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
