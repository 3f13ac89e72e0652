"""The paper's tables and figures, trained anew: ``spectral-param reproduce``."""
