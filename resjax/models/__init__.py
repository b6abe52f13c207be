"""Decoders, and how a model runs its layers along depth."""
