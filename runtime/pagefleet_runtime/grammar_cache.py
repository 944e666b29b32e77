"""What was compiled last, by its grammar, bounded in number and in characters of the grammars' texts."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from pagefleet_runtime.request import Grammar

Compiled = TypeVar("Compiled")


class GrammarCache(Generic[Compiled]):
    """The least recently used goes first. Safe to use from several threads."""

    def __init__(self, max_grammars: int, max_characters: int) -> None:
        self._max_grammars = max_grammars
        self._max_characters = max_characters
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._num_characters = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, grammar: Grammar) -> Compiled | None:
        with self._lock:
            compiled = self._kept.get(grammar)
            if compiled is not None:
                self._kept.move_to_end(grammar)
            return compiled

    def keep(self, grammar: Grammar, compiled: Compiled) -> None:
        with self._lock:
            if grammar in self._kept:
                return
            self._kept[grammar] = compiled
            self._num_characters += len(grammar.text)
            while len(self._kept) > self._max_grammars or self._num_characters > self._max_characters:
                oldest, _ = self._kept.popitem(last=False)
                self._num_characters -= len(oldest.text)
