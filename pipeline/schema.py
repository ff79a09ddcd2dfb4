"""What all config schemas have in common."""

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """No conversions between types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
