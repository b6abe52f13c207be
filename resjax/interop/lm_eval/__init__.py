"""lm-evaluation-harness in process: its tasks, scored by resjax; the extra `eval` installs it.

from resjax.cli.actions import loading
from resjax.interop.lm_eval import run_tasks

run_tasks(loading.from_workdir("runs/tiny"), ["hellaswag"])
"""

from resjax.interop.lm_eval.language_model import LanguageModel
from resjax.interop.lm_eval.running import run_tasks

__all__ = ["LanguageModel", "run_tasks"]
