"""Scores of models on texts and tasks."""

from resjax.evaluation.scorer import Scored, Scorer, Scores
from resjax.evaluation.texts import Model, Report, perplexity

__all__ = ["Model", "Report", "Scored", "Scorer", "Scores", "perplexity"]
