"""Which worker has which producers and consumers (pure)."""

from collections.abc import Mapping, Sequence

from sprocketmq.omb.plan import Subscription, WorkerPlan
from sprocketmq.omb.workload import Workload

PRODUCERS = "producers"
CONSUMERS = "consumers"


def topics_of(workload: Workload, run: str) -> list[str]:
    """Return the names of the topics of the run ``run``."""
    return [f"omb-{run}-{number:05}" for number in range(workload.topics)]


def plans_of(
    workload: Workload,
    topics: Sequence[str],
    *,
    driver: str,
    config: Mapping[str, object],
    payloads: tuple[bytes, ...],
    keys: tuple[str, ...],
    producer_workers: int,
    consumer_workers: int,
    report_s: float,
) -> list[WorkerPlan]:
    """Return a plan for each worker that has something to do.

    Producers and consumers are dealt out in turns. The rate is shared in proportion to the producers.
    """
    producers = [topic for _ in range(workload.producers_per_topic) for topic in topics]
    consumers = [
        Subscription(topic, f"sub-{number:03}-{topic}")
        for _ in range(workload.consumer_per_subscription)
        for number in range(workload.subscriptions_per_topic)
        for topic in topics
    ]
    shared = {
        "driver": driver,
        "config": dict(config),
        "warm_up_s": workload.warm_up_s,
        "measured_s": workload.measured_s,
        "report_s": report_s,
    }
    plans = [
        WorkerPlan(worker=f"{CONSUMERS}-{number}", consumers=tuple(consumers[number::consumer_workers]), **shared)  # type: ignore[arg-type]
        for number in range(consumer_workers)
    ]
    for number in range(producer_workers):
        mine = tuple(producers[number::producer_workers])
        rate = workload.producer_rate * len(mine) / len(producers)
        plans.append(
            WorkerPlan(
                worker=f"{PRODUCERS}-{number}",
                producers=mine,
                payloads=payloads,
                keys=keys,
                tags=workload.tags,
                rate=rate,
                **shared,  # type: ignore[arg-type]
            )
        )
    return [plan for plan in plans if plan.producers or plan.consumers]
