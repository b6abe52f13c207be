"""Scores of models on texts and tasks."""

from resjax.evaluation.scorer import Scored, Scorer, Scores
from resjax.evaluation.texts import Report, perplexity

__all__ = ["Report", "Scored", "Scorer", "Scores", "perplexity"]
