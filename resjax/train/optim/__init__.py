"""The optimizer: its settings, its learning rate, and what it does with each parameter."""

from resjax.train.optim.config import OptimizerConfig as OptimizerConfig
from resjax.train.optim.optimizer import make_optimizer as make_optimizer
from resjax.train.optim.schedules import schedule as schedule
from resjax.train.optim.schedules import steps_before_decay as steps_before_decay
from resjax.train.optim.schedules import warmup_steps as warmup_steps
from resjax.train.optim.table import ParameterRow as ParameterRow
from resjax.train.optim.table import Scaling as Scaling
from resjax.train.optim.table import check_combinator_factors as check_combinator_factors
from resjax.train.optim.table import column as column
from resjax.train.optim.table import parameter_rows as parameter_rows
