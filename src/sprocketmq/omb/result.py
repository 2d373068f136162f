"""The result of a run, in the JSON of OMB's ``TestResult``, which OMB's charts can draw. Latencies are in milliseconds, delays in us."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sprocketmq.errors import ConfigError
from sprocketmq.omb.histogram import Latencies, merged
from sprocketmq.omb.plan import WorkerReport
from sprocketmq.omb.workload import Workload

# OMB's names of quantiles, and the percentages. The arrays of its results go up to 99.99 %, the figures of the whole run further.
QUANTILES = {"50": 50.0, "75": 75.0, "95": 95.0, "99": 99.0, "999": 99.9, "9999": 99.99, "99999": 99.999}
# OMB's resolution of the quantile curves.
_TICKS = 100
# Samples are this long, as OMB's are, unless the run is short.
SAMPLE_S = 10.0
# A last interval that is shorter than this part of the others belongs to the sample before it.
_PARTIAL = 0.5

MEASURED_PHASES = ("build", "drain", "measure")

Result = dict[str, Any]


def combined(reports: Sequence[WorkerReport]) -> WorkerReport:
    """Return consecutive reports of one worker in one phase as one."""
    if len(reports) == 1:
        return reports[0]
    return WorkerReport(
        worker=reports[0].worker,
        phase=reports[0].phase,
        elapsed_s=sum(report.elapsed_s for report in reports),
        sent=sum(report.sent for report in reports),
        sent_bytes=sum(report.sent_bytes for report in reports),
        send_errors=sum(report.send_errors for report in reports),
        first_error=next((report.first_error for report in reports if report.first_error), ""),
        received=sum(report.received for report in reports),
        received_bytes=sum(report.received_bytes for report in reports),
        publish=merged(report.publish for report in reports).encode(),
        publish_delay=merged(report.publish_delay for report in reports).encode(),
        end_to_end=merged(report.end_to_end for report in reports).encode(),
        cpu_s=sum(report.cpu_s for report in reports),
    )


def by_sample(reports: Mapping[str, Sequence[WorkerReport]]) -> list[list[WorkerReport]]:
    """Return the reports of all workers, grouped by the time they cover.

    A command ends an interval on all workers at once, so their n-th reports cover the same time; see ``sprocketmq.omb.plan``.
    """
    samples: list[list[WorkerReport]] = []
    for of_worker in reports.values():
        usual = max((report.elapsed_s for report in of_worker), default=0.0)
        number = 0
        for index, report in enumerate(of_worker):
            if report.elapsed_s >= usual * _PARTIAL or index == 0:
                sample = number
                number += 1
            else:
                sample = number - 1
            while len(samples) <= sample:
                samples.append([])
            samples[sample].append(report)
    return samples


def _rate(reports: Sequence[WorkerReport], count: Callable[[WorkerReport], int]) -> float:
    """Return the sum of the workers' rates."""
    totals: dict[str, tuple[int, float]] = {}
    for report in reports:
        counted, elapsed = totals.get(report.worker, (0, 0.0))
        totals[report.worker] = counted + count(report), elapsed + report.elapsed_s
    return sum(counted / elapsed for counted, elapsed in totals.values() if elapsed)


def make(workload: Workload, driver: str, reports: Mapping[str, Sequence[WorkerReport]], before: Sequence[WorkerReport]) -> Result:
    """Return the result of the measured ``reports`` of each worker. The earlier ones, ``before``, count only for the backlog."""
    result: Result = {
        "workload": workload.name,
        "driver": driver,
        "messageSize": workload.message_size,
        "topics": workload.topics,
        "partitions": workload.partitions_per_topic,
        "producersPerTopic": workload.producers_per_topic,
        "consumersPerTopic": workload.consumer_per_subscription,
        "publishRate": [],
        "publishErrorRate": [],
        "consumeRate": [],
        "backlog": [],
    }
    copies = workload.subscriptions_per_topic if workload.consumer_per_subscription else 0
    backlog = sum(report.sent * copies - report.received for report in before)
    samples = by_sample(reports)
    for sample in samples:
        result["publishRate"].append(_rate(sample, lambda report: report.sent))
        result["publishErrorRate"].append(_rate(sample, lambda report: report.send_errors))
        result["consumeRate"].append(_rate(sample, lambda report: report.received))
        backlog += sum(report.sent * copies - report.received for report in sample)
        result["backlog"].append(max(0, backlog))
    everything = [report for of_worker in reports.values() for report in of_worker]
    for name, of_report, scale in _KINDS:
        _add_latencies(result, name, [[of_report(report) for report in sample] for sample in samples], scale)
        _add_aggregated(result, name, merged(map(of_report, everything)), scale)
    return result


def _publish(report: WorkerReport) -> str:
    return report.publish


def _publish_delay(report: WorkerReport) -> str:
    return report.publish_delay


def _end_to_end(report: WorkerReport) -> str:
    return report.end_to_end


_KINDS: tuple[tuple[str, Callable[[WorkerReport], str], float], ...] = (
    ("publishLatency", _publish, 1e-3),
    ("publishDelayLatency", _publish_delay, 1),
    ("endToEndLatency", _end_to_end, 1e-3),
)


def _add_latencies(result: Result, name: str, samples: Sequence[Sequence[str]], scale: float) -> None:
    whole = [merged(sample) for sample in samples]
    result[f"{name}Avg"] = [one.mean * scale for one in whole]
    for label, percent in QUANTILES.items():
        result[f"{name}{label}pct"] = [one.quantile(percent) * scale for one in whole]
    result[f"{name}Max"] = [one.max * scale for one in whole]


def _add_aggregated(result: Result, name: str, whole: Latencies, scale: float) -> None:
    name = f"aggregated{name[0].upper()}{name[1:]}"
    result[f"{name}Avg"] = whole.mean * scale
    for label, percent in QUANTILES.items():
        result[f"{name}{label}pct"] = whole.quantile(percent) * scale
    result[f"{name}Max"] = whole.max * scale
    result[f"{name}Quantiles"] = {f"{percent:.10g}": value * scale for percent, value in whole.quantiles(_TICKS)}


def checked(found: object, where: str) -> Result:
    """Return ``found``, decoded JSON, as a result that can be drawn and compared. Raises ConfigError."""
    if not isinstance(found, dict) or not {"workload", "driver", "publishRate", "consumeRate"} <= found.keys():
        raise ConfigError(f"{where} is not a result of the OpenMessaging benchmark: give a file that a run has written")
    return found
