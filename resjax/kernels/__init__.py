"""Fused operations behind one API each."""
