"""Depth retrieval: can a residual system give back, at the end, what one layer has written?"""
