"""YAML as this package reads and writes it: safe, strict about doubled keys, and fast enough for a thousand runs."""

from typing import Any

import yaml

from geomano_hpc.errors import ConfigError

# libyaml's parser is ten times faster than the one in Python, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _NoDoubledKeys(_Loader):
    """YAML lets a doubled key silently replace the first one, and a study would lose an axis without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.YAMLError(f"the key {key.value} stands twice (line {key.start_mark.line + 1})")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_NoDoubledKeys)  # noqa: S506 (a subclass of the safe loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


def read_mapping(text: str, source: str) -> dict[str, Any]:
    """What every file of ours holds: keys and values."""
    content = read_yaml(text, source)
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: expected a mapping of keys, found {type(content).__name__}")
    return content


def write_yaml(content: Any) -> str:
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False))
