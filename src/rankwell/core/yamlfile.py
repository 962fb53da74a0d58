"""YAML of bounded size: what is nested too deeply is refused, and so are aliases.

A few lines of nested aliases can stand for more than any memory holds.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

MAX_CHARACTERS = 2**20
MAX_DEPTH = 64


class YamlError(Exception):
    """What is wrong with a YAML text, in one line, and the ``line`` if it is known."""

    def __init__(self, problem: str, mark: yaml.Mark | None = None):
        super().__init__(" ".join(problem.split()))
        self.line = None if mark is None else mark.line + 1


class _Loader(yaml.SafeLoader):
    """YAML where a key that comes twice is an error instead of silently replacing the first."""

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        # Here, too: PyYAML reads a thousand brackets ahead, comparing each with all before it.
        if self.flow_level == MAX_DEPTH:
            raise YamlError(f"nested more than {MAX_DEPTH} deep", self.get_mark())
        super().fetch_flow_collection_start(token)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlError("a key must be plain text", key.start_mark)
            if key.value in seen:
                raise YamlError(f"the key {key.value!r} comes twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises :class:`YamlError`."""
    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"over {MAX_CHARACTERS:,} characters")
    try:
        _check(text)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        raise YamlError(error.problem or "cannot be read", error.problem_mark) from None
    except yaml.YAMLError as error:
        raise YamlError(str(error)) from None
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        # What the package raises for a value that does not fit its tag, such as `!!int x`.
        raise YamlError(f"a value does not fit its type ({error})") from None


def _check(text: str) -> None:
    """Read the events only, which needs no recursion and stops at the first that is too deep or an alias."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        mark = event.start_mark
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise YamlError(f"nested more than {MAX_DEPTH} deep", mark)
        if isinstance(event, yaml.AliasEvent):
            raise YamlError(f"the alias *{event.anchor} is not supported; write the value out", mark)
