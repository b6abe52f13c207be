from . import reader as reader
from .config import CheckpointConfig as CheckpointConfig
from .manager import Checkpoints as Checkpoints
from .reader import newest as newest
from .reader import saved_steps as saved_steps
