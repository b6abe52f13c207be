from . import analysis as analysis
from . import loading as loading
from . import scoring as scoring
from . import tasks as tasks
from .experiment import Experiment as Experiment
from .experiment import Pretrained as Pretrained
from .scoring import ScoringConfig as ScoringConfig
