"""The outcomes of the messages of one ``sprocketmq produce``."""

from collections import Counter
from dataclasses import dataclass, field

from sprocketmq import SendResult, SendStatus
from sprocketmq.errors import MaybeStoredError


@dataclass
class Tally:
    """Counts of the messages.

    ``queues`` maps (broker, queue) to count, first and last offset; ``failed`` has line numbers, whether they may be stored, and errors.
    ``unsafe`` counts messages that are stored with another status than SEND_OK, by status.
    """

    messages: int = 0
    size_bytes: int = 0
    requests: int = 0
    skipped: int = 0
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    failed: list[tuple[int, bool, str]] = field(default_factory=list)
    unsafe: Counter[str] = field(default_factory=Counter)

    @property
    def unknown(self) -> int:
        """Messages without an answer: they may be stored or not."""
        return sum(maybe_stored for _, maybe_stored, _ in self.failed)

    def add(self, line: int, size: int, result: SendResult | None, error: BaseException | None) -> None:
        """Add the outcome of one line."""
        if result is None:
            self.failed.append((line, isinstance(error, MaybeStoredError), str(error)))
            return
        self.messages += 1
        self.size_bytes += size
        if result.status is not SendStatus.SEND_OK:
            self.unsafe[result.status.name] += 1
        at = self.queues.get((result.broker_name, result.queue_id))
        offset = result.queue_offset
        if at is None:
            self.queues[result.broker_name, result.queue_id] = [1, offset, offset]
        else:
            at[0] += 1
            at[1] = min(at[1], offset)
            at[2] = max(at[2], offset)

    def failures(self) -> list[str]:
        """Return one sentence for each range of consecutive lines that failed in the same way."""
        ranges: list[tuple[int, int, bool, str]] = []
        for line, maybe_stored, why in sorted(self.failed):
            if ranges and ranges[-1][1:] == (line - 1, maybe_stored, why):
                ranges[-1] = (ranges[-1][0], line, maybe_stored, why)
            else:
                ranges.append((line, line, maybe_stored, why))
        return [
            f"{_lines(first, last)} {'may be stored or not' if maybe_stored else 'not sent'}: {why}"
            for first, last, maybe_stored, why in ranges
        ]


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"
