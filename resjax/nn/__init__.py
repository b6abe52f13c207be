"""Layers of a Transformer; none of them adds a residual."""
