"""YAML as people write it: keys in the order given, no anchors, lines of readable length."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def yaml_text(value: Any) -> str:
    """Return the value as YAML."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))
