"""lm-evaluation-harness in process: its tasks, scored by resjax; the extra `eval` installs it."""

from resjax.interop.lm_eval.language_model import LanguageModel
from resjax.interop.lm_eval.running import run_tasks

__all__ = ["LanguageModel", "run_tasks"]
