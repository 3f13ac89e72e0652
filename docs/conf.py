"""How the site is built: ``make docs``. Nothing is asked of the network."""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER / "_extensions"), str(FOLDER.parent)]
# for notebooks, which run in processes of their own
os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parent), str(FOLDER.parent / "examples")])
os.environ["OMP_NUM_THREADS"] = "1"

import spectral_param  # noqa: E402

project = "spectral_param"
author = copyright = "The spectral_param developers"
release = version = spectral_param.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "as_written",
    "elsewhere",
    "formulas",
    "repository",
    "thumbnails",
]
exclude_patterns = ["_build"]
nitpicky = True  # a name that leads nowhere is an error

# ----------------------------------------------------------------------------------------- docstrings, as they stand
autodoc_default_options = {"show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# ----------------------------------------------------------------------------------------------------- pages, notebooks
myst_enable_extensions = ["colon_fence", "dollarmath", "amsmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"  # notebooks are run at every build, and what they raise ends it
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
nb_output_stderr = "remove"  # Lightning tells there what machine it has found
nb_number_source_lines = False

# ---------------------------------------------------------------------------------------------------------------- looks
html_theme = "furo"
html_title = "spectral_param"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5d8a", "color-brand-content": "#0b5d8a"},
    "dark_css_variables": {"color-brand-primary": "#7cc4ee", "color-brand-content": "#7cc4ee"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
