"""What callers say about endpoints, checked field by field."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from gateway.webhooks.catalogue import EVENT_TYPES, FAMILIES, is_filter
from gateway.webhooks.targets import MOST_URL_CHARS

DAY_S = 24 * 3600
_MOST_OVERLAP_S = 30 * DAY_S
_MOST_SEQ = 2**62

_Url = Annotated[StrictStr, Field(min_length=1, max_length=MOST_URL_CHARS)]
_Description = Annotated[StrictStr, Field(max_length=255)]
_Events = Annotated[list[Annotated[StrictStr, Field(max_length=48)]], Field(max_length=len(EVENT_TYPES) + 8)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _WithEvents(_Request):
    @field_validator("events", check_fields=False)
    @classmethod
    def _names_are_known(cls, value: list[str] | None) -> list[str] | None:
        unknown = [name for name in value or () if not is_filter(name)]
        if unknown:
            families = ", ".join(f"{family}.*" for family in FAMILIES)
            raise ValueError(f"there is no event `{unknown[0][:48]}`; use a name, {families} or *")
        return None if value is None else list(dict.fromkeys(value))


class NewEndpointRequest(_WithEvents):
    """`POST /v1/webhook-endpoints`."""

    url: _Url
    description: _Description | None = None
    events: _Events = Field(default_factory=lambda: ["*"])
    body: Literal["thin", "full"] = "thin"
    allow_insecure: StrictBool = False


class EndpointChange(_WithEvents):
    """`PATCH /v1/webhook-endpoints/{id}`; what is left out stays."""

    url: _Url | None = None
    description: _Description | None = None
    events: _Events | None = None
    body: Literal["thin", "full"] | None = None
    allow_insecure: StrictBool | None = None
    status: Literal["enabled", "disabled"] | None = None

    @model_validator(mode="after")
    def _null_is_no_value(self) -> Self:
        for name in self.model_fields_set - {"description"}:
            if getattr(self, name) is None:
                raise ValueError(f"`{name}` cannot be null; leave it out to keep it")
        return self


class RotateRequest(_Request):
    """`POST /v1/webhook-endpoints/{id}/rotate`."""

    overlap_s: Annotated[StrictInt, Field(ge=0, le=_MOST_OVERLAP_S)] = DAY_S


class ReplayRequest(_Request):
    """`POST /v1/webhook-endpoints/{id}/replay`."""

    from_seq: Annotated[StrictInt, Field(ge=0, le=_MOST_SEQ)]
    to_seq: Annotated[StrictInt, Field(ge=0, le=_MOST_SEQ)]

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.to_seq < self.from_seq:
            raise ValueError("`to_seq` is below `from_seq`")
        return self


class OriginRequest(_Request):
    """`POST /v1/callback-origins`."""

    origin: Annotated[StrictStr, Field(min_length=1, max_length=300)]
