"""The compiled training step for devices that are not there: memory, operations, settings.

from resjax.aot import absent_devices, compile_step
from resjax.train import experiment

slices = absent_devices.describe("v5p-8")
report = compile_step.compile_step(experiment.build(config, slices.devices))
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
