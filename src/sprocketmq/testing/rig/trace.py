"""The trace of a simulated run: one line for each thing that happened. Runs with equal traces went the same way."""

import hashlib
from collections.abc import Callable


class Trace:
    """Lines with the time at which they were written; ``digest`` is the hash of all of them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.lines: list[str] = []
        self._now = now

    def note(self, text: str) -> None:
        self.lines.append(f"{self._now():.6f} {text}")

    @property
    def digest(self) -> str:
        return hashlib.blake2b("\n".join(self.lines).encode(), digest_size=16).hexdigest()

    def tail(self, count: int) -> str:
        """Return the last lines as text."""
        left = len(self.lines) - count
        return "\n".join([*([f"... {left} lines before"] if left > 0 else []), *self.lines[-count:]])
