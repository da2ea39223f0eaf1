"""Who computes a layer: this package, lax, the best form in pure JAX, and PyTorch.

A form turns a case and a pass into runners. A runner computes that pass and nothing else: XLA removes
what a training step needs for another pass (the forward result while only dX is asked for), and the
tests check the compiled programs for that.

Arrays come in and go out channels last, weights as (spatial, in / groups, out), as cases.py has them.

    form.py           what a form is, and its passes
    inputs.py         the operands
    weights.py        how they lie in memory
    jax_form.py       what all JAX forms share
    ours.py           this package
    lax.py            plain JAX
    xla_rewritten.py  pure JAX at its best
    torch.py          PyTorch
    resize.py         what these have for a resize
"""

from __future__ import annotations

from jax_convgrad.bench.forms.form import PASS_TITLES, PASSES, RESULTS, Form
from jax_convgrad.bench.forms.inputs import Inputs
from jax_convgrad.bench.forms.lax import LaxForm
from jax_convgrad.bench.forms.ours import OursForm
from jax_convgrad.bench.forms.torch import TorchForm
from jax_convgrad.bench.forms.xla_rewritten import XlaRewrittenForm

FORMS: dict[str, Form] = {
    form.name: form for form in (OursForm(), LaxForm(), XlaRewrittenForm(), TorchForm())
}

# Names that forms had in results of schema 3 and before.
_FORMER_NAMES = {"swap": "xla_rewritten"}


def present_name(form: str) -> str:
    """A form's name today, from the name that a results file has for it, of whatever age."""
    return _FORMER_NAMES.get(form, form)


__all__ = ["FORMS", "PASSES", "PASS_TITLES", "RESULTS", "Form", "Inputs", "present_name"]
