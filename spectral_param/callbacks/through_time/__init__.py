"""Gradients through time: listening to a step, cutting recurrences, and norms."""
