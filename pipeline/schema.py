"""What all config schemas have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """No conversions between types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """What keys stand for that a config lacks, or a record that is older than they are."""
        fields = cls.model_fields.items()
        return {name: f.get_default(call_default_factory=True) for name, f in fields if not f.is_required()}
