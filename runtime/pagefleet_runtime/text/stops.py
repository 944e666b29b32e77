"""Stop strings: which text may be shown, which may yet become a stop, and where the first stop is."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopFound:
    """The stop string that was complete first, and where in the whole text it stands."""

    stop: str
    start: int
    end: int


class StopSearch:
    """Looks for several stop strings in a text that comes in pieces; where the pieces are cut makes no difference.

    The stop that is complete first wins; of two that are complete at one place, the longer one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automata = [_Automaton(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._length = 0

    def push(self, text: str) -> StopFound | None:
        """Take the next piece. After a stop was found, call it no more."""
        for character in text if self._automata else ():
            self._length += 1
            complete = [automaton for automaton in self._automata if automaton.advance(character)]
            if complete:
                stop = complete[0].stop
                return StopFound(stop, self._length - len(stop), self._length)
        return None

    @property
    def num_held(self) -> int:
        """The length of the longest end of the text that may become a stop."""
        return max((automaton.matched for automaton in self._automata), default=0)


class _Automaton:
    """Knuth, Morris and Pratt: how much of `stop` the text's end matches now."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = [0]
        for character in stop[1:]:
            self._fallback.append(self._step(self._fallback[-1], character))

    def advance(self, character: str) -> bool:
        """Take a character and say whether the stop is complete."""
        self.matched = self._step(self.matched, character)
        return self.matched == len(self.stop)

    def _step(self, matched: int, character: str) -> int:
        while matched and self.stop[matched] != character:
            matched = self._fallback[matched - 1]
        return matched + (self.stop[matched] == character)
