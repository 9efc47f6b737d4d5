"""YAML as this package reads and writes it: safe, strict about doubled keys, and fast enough for a thousand runs."""

from typing import Any

import yaml

from geomano_hpc.errors import ConfigError

# libyaml's parser is ten times faster than the one in Python, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _NoDoubledKeys(_Loader):
    """YAML lets a doubled key silently replace the first one, and a study would lose an axis without a word."""

    def get_single_node(self) -> Any:
        """As it is written: a merge (<<) later puts the keys of another mapping beside a mapping's own."""
        root = super().get_single_node()
        seen, found = set(), [root]
        while found:
            node = found.pop()
            if node is None or node in seen:  # nothing, or an alias
                continue
            seen.add(node)
            if isinstance(node, yaml.MappingNode):
                _refuse_doubled_keys(node)
                found += [part for pair in node.value for part in pair]
            elif isinstance(node, yaml.SequenceNode):
                found += node.value
        return root


def _refuse_doubled_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.YAMLError(f"the key {key.value} stands twice (line {key.start_mark.line + 1})")
            seen.add(key.value)


def read_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_NoDoubledKeys)  # noqa: S506 (a subclass of the safe loader)
    except (yaml.YAMLError, ValueError) as error:  # the latter for a date or a number that is none
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


def read_mapping(text: str, source: str) -> dict[str, Any]:
    """What every file of ours holds: keys and values."""
    content = read_yaml(text, source)
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: expected a mapping of keys, found {type(content).__name__}")
    return content


def write_yaml(content: Any) -> str:
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False))
