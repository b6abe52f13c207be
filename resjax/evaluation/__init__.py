"""Scores of models on texts and tasks."""

from resjax.evaluation.scorer import Scored, Scorer, Scores

__all__ = ["Scored", "Scorer", "Scores"]
