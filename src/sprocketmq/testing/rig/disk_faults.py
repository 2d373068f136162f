"""Errors and delays that a test orders for calls of a simulated disk."""

from dataclasses import dataclass


@dataclass
class Fault:
    """An error or a delay for some calls."""

    call: str
    path: str
    skip: int
    times: int | None
    error: int = 0
    torn: int | None = None
    seconds: float = 0.0

    def hits(self, call: str, path: str) -> bool:
        if self.call != call or self.path not in path or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True
