"""All known forms, by name and by the fields of their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpdsl.errors import UsageError, unknown
from qpdsl.inputs.known.code_sets import HUMANEVAL, MBPP
from qpdsl.inputs.known.dataset_form import DatasetForm
from qpdsl.inputs.known.instruction_sets import IFEVAL
from qpdsl.inputs.known.math_sets import AIME, COUNTING, GSM8K, MATH, MATH500

FORMS = {form.name: form for form in (GSM8K, MATH500, MATH, AIME, HUMANEVAL, MBPP, IFEVAL, COUNTING)}


def form_called(name: str) -> DatasetForm:
    """Raises UsageError where no form is called so."""
    if name not in FORMS:
        raise UsageError(unknown(name, FORMS, "no data set is known as"))
    return FORMS[name]


def form_of(record: Mapping[str, Any]) -> DatasetForm | None:
    """The form that a record has by its fields, None where it is none of these."""
    return next((form for form in FORMS.values() if form.is_form_of(record)), None)
