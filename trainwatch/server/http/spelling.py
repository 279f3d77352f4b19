"""How values are spelled in JSON: what every answer of the API is made of.

NaN and ±Infinity have no JSON form. They travel as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; a field
that may hold one is declared :data:`Number`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema

Number = Annotated[
    float,
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]}),
]
"""A float that may be NaN, Infinity or -Infinity."""


def spelled(value: Any) -> Any:
    """Spells NaN and ±Infinity out, however deep they lie in plain values."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: spelled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [spelled(inner) for inner in value]
    return value


# pydantic writes null for a NaN inside of Any, whatever the model's configuration says.
Document = Annotated[dict[str, Any], AfterValidator(spelled)]
"""Plain nested values, with NaN and ±Infinity spelled out."""


class Model(BaseModel):
    """Base of all: frozen, and with a JSON form for NaN and Infinity."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
