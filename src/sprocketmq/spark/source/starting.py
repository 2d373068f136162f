"""Where a query starts: the queues that its options select, and the first offset of each."""

import logging
from collections.abc import Mapping, Sequence

from sprocketmq.errors import TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.source.access import ClusterAccess, FilterRefused
from sprocketmq.spark.source.offsets import Offsets, name_queue, settle
from sprocketmq.spark.source.options import ReadOptions
from sprocketmq.spark.source.reading import DataLoss

log = logging.getLogger(__name__)


def find_queues(options: ReadOptions, access: ClusterAccess) -> tuple[list[MessageQueue], list[str]]:
    """Return the readable queues that the options select, and the topics selected by name that have no route.

    Topics selected by a pattern are never reported as missing.
    """
    topics = options.topics if options.pattern is None else tuple(filter(options.reads_topic, access.topics()))
    missing = []
    try:
        found = access.queues(topics)
    except TopicNotFound:
        found = []
        for topic in topics:
            try:
                found += access.queues([topic])
            except TopicNotFound:
                missing.append(topic)
    return sorted(filter(options.reads, found)), [] if options.pattern is not None else missing


def starting_offsets(
    options: ReadOptions, access: ClusterAccess, earliest: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int]
) -> Offsets:
    """Return the first offset of a new query in each queue.

    An offset below the queue's first message raises DataLoss, or moves up with failOnDataLoss=false; one past the end raises OptionError.
    """
    bound = options.starting
    start = settle(bound, access, earliest, latest, error_without_match=options.error_without_match)
    for queue in sorted(start):
        if start[queue] > latest[queue]:
            raise OptionError(bound.option, f"{name_queue(queue)} ends at {latest[queue]}, offset {start[queue]} is past it")
        if start[queue] < earliest[queue]:
            loss = DataLoss(queue, start[queue], earliest[queue], f"the queue now begins at {earliest[queue]}")
            if options.fail_on_data_loss:
                raise loss
            log.warning("starting at the beginning of the queue (failOnDataLoss is false): %s", loss)
            start[queue] = earliest[queue]
    return start


def queues_to_start_with(options: ReadOptions, access: ClusterAccess) -> list[MessageQueue]:
    """Return the queues of a new query. Raises TopicNotFound, and OptionError for assigned queues that do not exist."""
    queues, missing = find_queues(options, access)
    if missing:
        raise TopicNotFound(missing[0], options.nameserver)
    for queue in options.assign:
        if queue not in queues:
            there = sorted(found.queue_id for found in access.queues([queue.topic]) if found.broker_name == queue.broker_name)
            has = f"that broker has queues {', '.join(map(str, there))} of it" if there else "that broker has no queue of it"
            raise OptionError("assign", f"there is no {name_queue(queue)}; {has}")
    check_filter(options, access, queues)
    return queues


def check_filter(options: ReadOptions, access: ClusterAccess, queues: Sequence[MessageQueue]) -> None:
    """Ask the brokers to validate the filter before any task uses it. Raises OptionError."""
    try:
        access.check_filter(queues, options.filter)
    except FilterRefused as e:
        raise OptionError("filterExpression", str(e)) from None
