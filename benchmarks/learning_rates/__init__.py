"""Whether registered models train as the plain ones do at the plain ones' learning rates."""
