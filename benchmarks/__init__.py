"""How fast the weights in SVD form are, against plain layers and other packages: ``python -m benchmarks``."""
