"""The findings of a verification: each names the file, the position in it and a command that helps; their number is bounded."""

from collections import Counter
from dataclasses import dataclass, field

ERROR = "error"  # data is lost or wrong, or a derived file does not match the log
WARNING = "warning"  # nothing is lost, but someone should look at it
# Normal for a store that is in use, or whose broker was killed, or that was copied while in use: the next start handles it.
NOTE = "note"

_ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}
# Damage often causes thousands of similar findings; the first ones of a kind are enough.
MAX_OF_A_KIND = 20


@dataclass(frozen=True)
class Finding:
    """One finding. ``offset`` is a position in the file, None for the file as a whole; ``repair`` is a command or another next step."""

    severity: str
    kind: str
    path: str
    offset: int | None
    what: str
    repair: str = ""


@dataclass
class Findings:
    """Collects findings, at most ``MAX_OF_A_KIND`` of each kind, and counts the others."""

    found: list[Finding] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, severity: str, kind: str, path: str, offset: int | None, what: str, repair: str = "") -> None:
        """Add a finding."""
        self.counts[severity, kind] += 1
        if self.counts[severity, kind] <= MAX_OF_A_KIND:
            self.found.append(Finding(severity, kind, path, offset, what, repair))

    def sorted(self) -> list[Finding]:
        """Return the findings kept, the worst first, with one line for the rest of each kind that had too many."""
        rest = [
            Finding(severity, kind, "", None, f"{count - MAX_OF_A_KIND:,} more of the kind {kind!r}")
            for (severity, kind), count in self.counts.items()
            if count > MAX_OF_A_KIND
        ]
        return sorted([*self.found, *rest], key=lambda f: _ORDER[f.severity])

    def total(self, severity: str) -> int:
        """Return how many findings of a severity there were."""
        return sum(count for (found, _), count in self.counts.items() if found == severity)
