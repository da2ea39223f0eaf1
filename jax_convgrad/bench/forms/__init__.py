"""The contenders for a layer: this package, lax, the best form in pure JAX, and PyTorch.

A form turns a case and a pass into runners. A runner computes that pass and nothing else: XLA removes
what a training step needs for another pass (the forward result while only dX is asked for), and the
tests check the compiled programs for that.

Arrays come in and go out channels last, weights as (spatial, in / groups, out), as cases.py has them.

    form.py           the definition of a form, and its passes
    inputs.py         the operands
    weights.py        their memory layout
    jax_form.py       code that all JAX forms share
    ours.py           this package
    lax.py            plain JAX
    xla_rewritten.py  pure JAX at its best
    torch.py          PyTorch
    resize.py         the same contenders for a resize
"""

from __future__ import annotations

from jax_convgrad.bench.forms.form import PASS_TITLES, PASS_WORDS, PASSES, RESULTS, Form
from jax_convgrad.bench.forms.inputs import Inputs
from jax_convgrad.bench.forms.lax import LaxForm
from jax_convgrad.bench.forms.ours import OursForm
from jax_convgrad.bench.forms.torch import TorchForm
from jax_convgrad.bench.forms.xla_rewritten import XlaRewrittenForm

FORMS: dict[str, Form] = {
    form.name: form for form in (OursForm(), LaxForm(), XlaRewrittenForm(), TorchForm())
}

# What tables and charts call a form, where that is not its name in options and files.
_TITLES = {"ours": "jax_convgrad"}

# Names of forms in results of schema 3 and older.
_FORMER_NAMES = {"swap": "xla_rewritten"}


def present_name(form: str) -> str:
    """A form's current name, for the name in a results file of any age."""
    return _FORMER_NAMES.get(form, form)


def title(form: str) -> str:
    """What tables and charts call a form."""
    return _TITLES.get(form, form)


__all__ = [
    "FORMS",
    "PASSES",
    "PASS_TITLES",
    "PASS_WORDS",
    "RESULTS",
    "Form",
    "Inputs",
    "present_name",
    "title",
]
