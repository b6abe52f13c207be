"""What is compiled for NVIDIA GPUs that are not there."""

import pytest

from resjax.aot import absent_devices

_MISSING = absent_devices.missing_for_gpus()

needs_cuda_aot = pytest.mark.skipif(
  _MISSING is not None, reason=f"not installed: {_MISSING} (the extra `cuda_aot`)"
)
