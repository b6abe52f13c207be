"""Scores of models on texts and tasks, by the conventions of those who publish them.

from resjax.study.evaluation import corpora, perplexity

report = perplexity([model], corpora.parse(["wiki=wikitext.txt"]))
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
