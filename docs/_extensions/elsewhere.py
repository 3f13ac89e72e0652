"""Links to the pages of torch, Lightning, Python and others, from a table and not from inventories of theirs.

A name that is not of this project is looked up here: first under the full name that it is short for, then the page of
the longest prefix that has one. ``{name}`` in an address is the name itself.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

FULL_NAMES = {
    "Tensor": "torch.Tensor",
    "SpectralTable": "list",
    "PackedSequence": "torch.nn.utils.rnn.PackedSequence",
    "ParametrizationList": "torch.nn.utils.parametrize.ParametrizationList",
    "Generator": "torch.Generator",
    "Optimizer": "torch.optim.Optimizer",
    "Path": "pathlib.Path",
    "OrderedDict": "collections.OrderedDict",
    "Any": "typing.Any",
    "Callable": "collections.abc.Callable",
    "Iterable": "collections.abc.Iterable",
    "Iterator": "collections.abc.Iterator",
    "Mapping": "collections.abc.Mapping",
    "Sequence": "collections.abc.Sequence",
    "nn.RNNCellBase": "torch.nn.modules.rnn.RNNCellBase",
    "lightning.pytorch.callbacks.callback.Callback": "lightning.pytorch.callbacks.Callback",
    "lightning.pytorch.callbacks.progress.rich_progress.RichProgressBar": "lightning.pytorch.callbacks.RichProgressBar",
    "lightning.pytorch.core.module.LightningModule": "lightning.pytorch.LightningModule",
    "lightning.pytorch.core.datamodule.LightningDataModule": "lightning.pytorch.LightningDataModule",
    "Array": "numpy.ndarray",
    "ArrayLike": "numpy.typing.ArrayLike",
    "Figure": "matplotlib.figure.Figure",
}

_TORCH = "https://docs.pytorch.org/docs/stable/"
_LIGHTNING = "https://lightning.ai/docs/pytorch/stable/api/"
_PYTHON = "https://docs.python.org/3/library/"

PAGES = {
    "torch": _TORCH + "generated/{name}.html#{name}",
    "torch.Tensor": _TORCH + "tensors.html#{name}",
    "torch.device": _TORCH + "tensor_attributes.html#{name}",
    "torch.dtype": _TORCH + "tensor_attributes.html#{name}",
    "torch.export": _TORCH + "export.html",
    "torch.func": _TORCH + "func.html",
    "torch.optim.Optimizer": _TORCH + "optim.html#{name}",
    "torch.utils.data": _TORCH + "data.html#{name}",
    "lightning": _LIGHTNING + "{name}.html#{name}",
    "lightning.pytorch.LightningModule": _LIGHTNING + "lightning.pytorch.core.LightningModule.html",
    "lightning.pytorch.LightningDataModule": _LIGHTNING + "lightning.pytorch.core.LightningDataModule.html",
    "lightning.pytorch.Trainer": "https://lightning.ai/docs/pytorch/stable/common/trainer.html",
    "torchmetrics": "https://lightning.ai/docs/torchmetrics/stable/references/metric.html#{name}",
    "matplotlib.figure": "https://matplotlib.org/stable/api/figure_api.html#{name}",
    "numpy.ndarray": "https://numpy.org/doc/stable/reference/generated/{name}.html#{name}",
    "numpy.typing": "https://numpy.org/doc/stable/reference/typing.html#{name}",
    "transformers": "https://huggingface.co/docs/transformers/main_classes/callback#{name}",
    "collections.abc": _PYTHON + "collections.abc.html#{name}",
    "collections.OrderedDict": _PYTHON + "collections.html#{name}",
    "enum": _PYTHON + "enum.html#{name}",
    "os.PathLike": _PYTHON + "os.html#{name}",
    "pathlib": _PYTHON + "pathlib.html#{name}",
    "typing": _PYTHON + "typing.html#{name}",
}
_FUNCTIONS = ("bool", "bytes", "dict", "float", "frozenset", "int", "list", "object", "set", "str", "tuple", "type")
PAGES |= dict.fromkeys(_FUNCTIONS, _PYTHON + "functions.html#{name}")
PAGES |= {"None": _PYTHON + "constants.html#{name}", "property": _PYTHON + "functions.html#{name}"}
_EXCEPTIONS = ("FileNotFoundError", "ImportError", "KeyError", "RuntimeError", "TypeError", "UserWarning", "ValueError")
PAGES |= dict.fromkeys(_EXCEPTIONS, _PYTHON + "exceptions.html#{name}")


def address(name: str) -> str | None:
    """Where a name is explained, or ``None``."""
    name = FULL_NAMES.get(name, re.sub(r"^nn\.|^torch\.nn\.modules\.(?!rnn\.RNNCellBase)\w+\.", "torch.nn.", name))
    prefix = name
    while prefix and prefix not in PAGES:
        prefix = prefix.rpartition(".")[0]
    return PAGES[prefix].format(name=name) if prefix else None


def _link(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> Any:
    if node["refdomain"] != "py" or (found := address(node["reftarget"])) is None:
        return None
    return nodes.reference("", "", content, internal=False, refuri=found, reftitle=node["reftarget"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the table behind the project's own names."""
    app.connect("missing-reference", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
