"""Marks of what older versions cannot do themselves, each with the reason; docs/versions.md tells the same."""

from importlib.metadata import version
from importlib.util import find_spec

import pytest
from packaging.version import Version


def needs(package: str, least: str, what: str) -> pytest.MarkDecorator:
    """Skips a test with a version of a package below the least one that has what it takes."""
    return pytest.mark.skipif(Version(version(package)) < Version(least), reason=f"{package} {least} has {what}")


a_precision_each = needs("torch", "2.9", "a precision of products for each backend")
hooks_seen_by_compilers = needs("torch", "2.14", "compiled code that looks for hooks that were added since")
sharding_on_the_cpu = needs("torch", "2.10", "sharding on the CPU that trains as one process does")
full_state_of_fsdp1 = needs("torch", "2.14", "a state dict of FSDP1 on the CPU that does not end the process")
muon = needs("torch", "2.9", "Muon")
experts_in_one_tensor = needs("transformers", "5.0", "experts of Mixtral in one tensor")
writable_dlpack = needs("numpy", "2.1", "arrays by DLPack that can be written to")
traced_tuples = needs("torch", "2.11", "a torch.cat that torch.fx follows for a tuple that it traces")
configured_bars = needs("lightning", "2.6", "a rich progress bar that a configuration can name")
checkpoints_by_command = needs("lightning", "2.6", "a command that reads the checkpoint of a model by its class")
averaging_steps = needs("lightning", "2.6", "EMAWeightAveraging")

# triton 3.6 takes numbers out of arrays as NumPy 2.5 refuses, 3.8 does not
interpreted_kernels = pytest.mark.skipif(
    Version(version("numpy")) >= Version("2.5")
    and find_spec("triton") is not None
    and Version(version("triton")) < Version("3.8"),
    reason="triton 3.8 interprets kernels beside NumPy 2.5",
)

COMPILES_TO_THE_BIT = Version(version("torch")) >= Version("2.14")
