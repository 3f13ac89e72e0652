"""How far the output of a network can move when its input does: a rule for each kind of layer, and what joins them."""

from spectral_param.bounds.lipschitz.bound import lipschitz_bound
from spectral_param.bounds.lipschitz.cells import cell_lipschitz_bound

__all__ = ["cell_lipschitz_bound", "lipschitz_bound"]
