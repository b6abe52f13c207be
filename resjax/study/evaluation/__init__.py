"""Scores of models on texts and tasks."""

from resjax.study.evaluation.scorer import Scored, Scorer, Scores
from resjax.study.evaluation.texts import Report, perplexity

__all__ = ["Report", "Scored", "Scorer", "Scores", "perplexity"]
