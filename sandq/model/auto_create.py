"""Topics that are created when a client first produces or subscribes to them: patterns of names, and their settings."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from sandq.model import schema, yaml_marks
from sandq.model.config_types import split
from sandq.model.errors import InvalidSetting
from sandq.model.limits import DEFAULT
from sandq.model.settings import parse_settings
from sandq.model.topic_patterns import TopicPattern, problem_of

_MOST_REPLICAS: Final = 1000
AUTO: Final = "auto"
"""Value of `replicas` that means: the default number of replicas of the cluster."""


def _patterns(value: object) -> object:
    """Return the patterns of a setting as a list. Raise a mistake if one is wrong."""
    patterns = split(value)
    if isinstance(patterns, list) and patterns and (problem := problem_of(patterns)) is not None:
        raise schema.mistake(problem)
    return patterns


def _mapping(value: object) -> object:
    """Check a mapping. In an environment variable, the mapping is YAML text."""
    if isinstance(value, str):
        marked = yaml_marks.load(value)
        value = marked.value if not marked.mistakes else value
    if not isinstance(value, dict):
        raise schema.mistake("a mapping of settings is expected, as {ttl: 1d}")
    return value


def _replicas(value: object) -> object:
    """Return a number of replicas, or AUTO."""
    return value if value == AUTO else schema.whole(value, 1, _MOST_REPLICAS)


class AutoCreateSection(schema.Section):
    """Topics that are created on first use, and their settings. Without patterns, no topics are created."""

    patterns: Annotated[list[str], BeforeValidator(_patterns)] = Field(default=[])
    kind: Literal["timer", "compacted", "priority", "fair"] = "timer"
    partitions: Annotated[int, schema.integer(1, DEFAULT.partitions_per_topic)] = 1
    replicas: Annotated[int | Literal["auto"], BeforeValidator(_replicas)] = AUTO
    settings: Annotated[dict[str, Any], BeforeValidator(_mapping)] = Field(default={})

    @field_validator("settings")
    @classmethod
    def _of_its_kind(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Check the settings of the topics to create against their kind."""
        if "kind" in info.data:
            try:
                parse_settings(settings, info.data["kind"])
            except InvalidSetting as error:
                raise schema.mistake(error.message) from None
        return settings


class AutoCreate:
    """The rules of the section, ready to be applied."""

    def __init__(self, section: AutoCreateSection | None = None) -> None:
        """Use the rules of `section`; None: no topic is created on first use."""
        section = section if section is not None else AutoCreateSection()
        self._pattern = TopicPattern(section.patterns) if section.patterns else None
        self.kind: str = section.kind
        self.partitions = section.partitions
        self.replicas = section.replicas if section.replicas != AUTO else None
        """Number of replicas; None: the number that the cluster gives a topic by default."""
        self.settings = section.settings

    @property
    def is_on(self) -> bool:
        """Return whether any topic is created on first use."""
        return self._pattern is not None

    def matches(self, name: str) -> bool:
        """Return whether a topic of this name is created on first use."""
        return self._pattern is not None and self._pattern.matches(name)

    def __str__(self) -> str:
        return str(self._pattern) if self._pattern is not None else "none"


NO_AUTO_CREATE: Final = AutoCreate()
