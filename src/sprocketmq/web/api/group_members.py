"""The members of a consumer group and their queues, as each member reports them through its broker (307)."""

from dataclasses import dataclass, field

from sprocketmq.errors import SprocketError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.web.api.reader import ClusterReader, Json

# The number of members that are asked for their state; the others are only listed.
MAX_MEMBERS_ASKED = 64
MAX_MEMBERS_SHOWN = 512


@dataclass
class Member:
    """One member of a group. ``problem`` says why its queues are unknown."""

    client_id: str
    address: str
    language: str
    version: int
    queues: list[MessageQueue] = field(default_factory=list)
    waiting: int | None = None
    handled_per_s: float | None = None
    handler_ms: float | None = None
    problem: str = ""

    def as_json(self) -> Json:
        """Return the member as a row of the page."""
        return {
            "client_id": self.client_id,
            "address": self.address,
            "language": self.language,
            "version": self.version,
            "queues": None if self.problem else len(self.queues),
            "waiting": self.waiting,
            "handled_per_s": self.handled_per_s,
            "handler_ms": self.handler_ms,
            "problem": self.problem,
        }


async def members_of(reader: ClusterReader, group: str) -> tuple[list[Member], list[Json], dict[str, str]]:
    """Return the members by client id, their subscriptions by topic, and the reasons of brokers that did not report theirs."""
    answers, missing = await reader.ask_all(lambda address: reader.admin.members_on(address, group))
    brokers = await reader.brokers()
    found: dict[str, tuple[Member, str]] = {}
    subscriptions: dict[str, str] = {}
    for name, answer in answers.items():
        if answer is not None:
            for one in answer.connection_set:
                member = Member(one.client_id, one.client_addr, one.language, one.version)
                found.setdefault(one.client_id, (member, brokers.get(name, "")))
            subscriptions.update({topic: data.sub_string for topic, data in answer.subscription_table.items()})
    chosen = [found[client_id] for client_id in sorted(found)][:MAX_MEMBERS_SHOWN]
    await all_of(_ask(reader, group, member, address) for member, address in chosen[:MAX_MEMBERS_ASKED])
    for member, _ in chosen[MAX_MEMBERS_ASKED:]:
        member.problem = f"only the first {MAX_MEMBERS_ASKED} members are asked for their queues"
    rows: list[Json] = [{"topic": topic, "expression": text} for topic, text in sorted(subscriptions.items())]
    return [member for member, _ in chosen], rows, missing


async def _ask(reader: ClusterReader, group: str, member: Member, address: str) -> None:
    try:
        info = await reader.ask_member(lambda: reader.admin.running_info_on(address, group, member.client_id))
    except SprocketError as e:
        member.problem = f"the member did not tell its queues: {e}"
        return
    member.queues = sorted(queue for queue, state in info.mq_table.items() if not state.droped)
    member.waiting = sum(state.cached_msg_count for state in info.mq_table.values())
    if info.status_table:
        member.handled_per_s = sum(status.consume_ok_tps for status in info.status_table.values())
        member.handler_ms = max(status.consume_rt for status in info.status_table.values())
