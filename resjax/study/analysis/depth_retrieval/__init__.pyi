from . import results as results
from . import training as training
from .results import Cell as Cell
from .results import Results as Results
from .task import Setup as Setup
from .task import System as System
from .task import Task as Task
from .task import every_system as every_system
