"""Measure what TLS and signatures cost: our client and broker with each, beside both without, and Apache's broker and Java client with TLS.

1 KiB bodies, 8 queues of a plain topic and of one of batch queues, ASYNC_FLUSH; every server and every client is a process of its own on
this machine:

auto-plain     auto-batchcq     submitted messages through AutoBatch, 4,096 in flight
consume-plain  consume-batchcq  a new consumer group reads a filled topic from its first message, every body

plain      neither
signed     the client signs, the broker, that of plain, does not look
checked    the client signs, nameserver and broker authenticate and authorize a user with policies
tls        TLS 1.3, elliptic keys, enforced at nameserver and broker
theirs     the same at Apache's nameserver and broker, with its Java client

Goals: AutoBatch signed and checked 0.85 of plain; with TLS 0.5 of plain in sends and 0.6 in consuming, and 1.3 of Apache's. The CPU time of
broker and client per message is counted from the begin of a round to its end. ``limit`` beside a ratio is what it would be if nothing but the
cryptography were added, as spread over the cores as the rest is: the plain side's CPU time of a message, divided by itself and, for
signatures, one HMAC of a KiB (``hmac_us_per_kib``) or two where the broker compares; for TLS the encryption and decryption of a KiB by
Python's ssl module, without sockets (``tls_us_per_kib``). Memory is at hand for the logs (``memory.py``): three brokers of ours grow beside each
other. Exits 1 when a goal is missed, 2 when the machine cannot run the comparison.
"""

import argparse
import contextlib
import hmac
import json
import ssl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tests.certificates import Authority, Pair
from tests.fuzz.secured import grant, write_users
from tests.interop import apache
from tests.interop.secured import tls_client, tls_server

from benchmarks.load import rounds
from benchmarks.load.consume import FILL_BATCH, reading
from benchmarks.load.memory import provided_memory
from benchmarks.load.rounds import (
    AUTO,
    BODY_BYTES,
    QUEUES,
    Figures,
    Workload,
    one_round,
    report_verdicts,
    require_apache,
    store_directory,
    turns,
    verdict,
    wait_until_quiet,
)
from benchmarks.load.sides import OurClient, Side, Topic, create_topic, serve
from benchmarks.processor import cpu_s
from benchmarks.report import spread, write_result
from sprocketmq import Credentials

SENT = {"plain": Topic("LoadTest", QUEUES), "batchcq": Topic("LoadTestBatchCQ", QUEUES, batch_queues=True)}
FILLED = {"plain": Topic("ConsumeTest", QUEUES), "batchcq": Topic("ConsumeTestBatchCQ", QUEUES, batch_queues=True)}
PLAIN, SIGNED, CHECKED, TLS, THEIRS = "plain", "signed", "checked", "tls", "theirs"
# The least ratios of rates: to plain, and with TLS to Apache's.
OF_PLAIN = {("auto", SIGNED): 0.85, ("auto", CHECKED): 0.85, ("auto", TLS): 0.5, ("consume", TLS): 0.6}
OF_THEIRS = 1.3
SIGNER = Credentials("signer", "the-secret-of-whoever-sends-here")
DISK_BYTES = 56 << 30
# How many bytes are signed at once, and how many a transport gets to encrypt at once.
SIGNED_BYTES = 256 << 10
ENCRYPTED_BYTES = 256 << 10
# What is to be read stays, however full the disk gets.
KEEP = {"disk_max_used_ratio": 1.0, "disk_clean_forcibly_ratio": 1.0, "disk_warning_ratio": 1.0}
# A record with a body of 1 KiB is shorter.
RECORD_BYTES = 1400


@dataclass(frozen=True)
class Measured(Side):
    """A side with the processes whose CPU time counts, and what its clients need."""

    server_pid: int = 0
    client_pid: int = 0
    ca_file: str | None = None
    credentials: Credentials | None = None

    def another_client(self) -> OurClient:
        """Start a client of ours."""
        return OurClient(self.namesrv, ca_file=self.ca_file, credentials=self.credentials)


@contextlib.contextmanager
def our_client(name: str, servers: Measured) -> Iterator[Measured]:
    """Run a client at servers that run."""
    client = servers.another_client()
    try:
        pid = client.process.pid
        yield replace(servers, name=name, client=client, client_pid=pid, pids=(servers.server_pid, pid))
    finally:
        client.stop()


@contextlib.contextmanager
def our_servers(directory: Path, settings: Mapping[str, object], **client: Any) -> Iterator[Measured]:
    """Run our nameserver and broker in one process."""
    arguments = [word for key, value in {**KEEP, **settings}.items() for word in ("--set", f"{key}={value}")]
    with serve(directory, *arguments) as (namesrv, pid):
        yield Measured("", namesrv, _Nobody(), (pid,), directory / "store", pid, **client)


class _Nobody:
    """The client of servers that have none yet."""

    def call(self, op: str, **arguments: Any) -> Any:
        raise AssertionError(f"{op} {arguments}")


@contextlib.contextmanager
def our_sides(directory: Path, authority: Authority, certificate: Pair) -> Iterator[list[Measured]]:
    """Run our sides: three pairs of servers, and a client for each kind."""
    directory.mkdir()
    policy = grant(SIGNER, "Topic:*", "All")
    policy["entries"] += [entry for name in ("Group:*", "Cluster:*") for entry in grant(SIGNER, name, "All")["entries"]]
    inner = directory / "inner.json"
    inner.touch(0o600)
    inner.write_text(json.dumps({"access_key": "inner", "secret_key": "servers-among-themselves-sign-so"}))
    checks = {
        "authentication_enabled": "true",
        "authorization_enabled": "true",
        "users_file": write_users(directory / "users.json", [SIGNER], [policy]),
        "inner_credentials_file": inner,
    }
    encrypts = {
        "tls_mode": "enforcing",
        "tls_cert_file": certificate.cert_file,
        "tls_key_file": certificate.key_file,
        "tls_ca_file": authority.ca_file,
    }
    with contextlib.ExitStack() as running:
        plain = running.enter_context(our_servers(directory / PLAIN, {}))
        checking = running.enter_context(our_servers(directory / CHECKED, checks, credentials=SIGNER))
        encrypting = running.enter_context(our_servers(directory / TLS, encrypts, ca_file=authority.ca_file))
        signing = replace(plain, credentials=SIGNER)
        kinds = {PLAIN: plain, SIGNED: signing, CHECKED: checking, TLS: encrypting}
        yield [running.enter_context(our_client(name, servers)) for name, servers in kinds.items()]


@contextlib.contextmanager
def theirs(directory: Path, authority: Authority, certificate: Pair) -> Iterator[Measured]:
    """Run Apache's nameserver and broker with TLS enforced, and its Java client, which checks the certificate."""
    server, client_flags = tls_server(certificate, authority.ca_file), tls_client(authority.ca_file)
    with contextlib.ExitStack() as running:
        namesrv = apache.ApacheNamesrv(directory / "namesrv", flags=(*apache.SMALL, *server))
        running.callback(namesrv.kill)
        flags, asking = (*apache.MEASURED_BROKER, *server), ssl.create_default_context(cafile=authority.ca_file)
        broker = apache.ApacheBroker(directory / "broker", namesrv.address, unhurried={}, flags=flags, tls=asking)
        running.callback(broker.kill)
        client = running.enter_context(apache.JavaClient(directory / "client", flags=(*apache.MEASURED_CLIENT, *client_flags)))
        pids = (namesrv.process.pid, broker.process.pid, client.process.pid)
        yield Measured(THEIRS, namesrv.address, client, pids, broker.store, broker.process.pid, client.process.pid, authority.ca_file)


def make_topics(side: Measured, messages: int) -> None:
    """Make all topics, and fill those to be read with our client, on all sides alike."""
    for topic in (*SENT.values(), *FILLED.values()):
        create_topic(side, topic)
    client = side.another_client()
    try:
        for topic in FILLED.values():
            client.call("fill", topic=topic.name, count=messages, batch=FILL_BATCH, body_bytes=BODY_BYTES)
    finally:
        client.stop()


def measured(side: Measured, sides: Sequence[Measured], workload: Workload, options: argparse.Namespace) -> Figures:
    """Run one workload on one side when the machine is quiet; adds the CPU time of broker and client a message to the figures."""
    sends = workload.op == AUTO.op
    if sends:
        for one in sides:
            one.drop_page_cache()
    else:  # which was dropped for the sends before
        side.fill_page_cache(options.messages * len(FILLED) * RECORD_BYTES)
    wait_until_quiet(options.settle)
    with provided_memory(workload.op, options.warm + options.seconds):
        before = cpu_s(side.server_pid), cpu_s(side.client_pid)
        figures = one_round(side, sides, workload, options.warm, options.seconds)
    if figures["errors"] and side.name != THEIRS:
        raise RuntimeError(f"{side.name} {workload.name}: {figures['errors']} failed, the first with {figures['first_error']}")
    # A timed load sends also before and after what is counted, at the same rate.
    messages = figures["messages_per_s"] * (options.warm + options.seconds) if sends else figures["messages"]
    figures["broker_cpu_us"] = (cpu_s(side.server_pid) - before[0]) / messages * 1e6
    figures["client_cpu_us"] = (cpu_s(side.client_pid) - before[1]) / messages * 1e6
    return figures


def summary(done: dict[str, list[Figures]]) -> Figures:
    """Return medians and spreads of each side."""
    keys = ("broker_cpu_us", "client_cpu_us", "foreign_cpu")
    return {
        name: {
            "errors": sum(one["errors"] for one in figures),
            "messages_per_s": spread((one["messages_per_s"] for one in figures), 0),
            **{key: spread(one[key] for one in figures) for key in keys},
        }
        for name, figures in done.items()
    }


def hmac_us_per_kib() -> float:
    """Return what a signature takes of a KiB here, in us of processor time: the least of some tries."""
    body, key = bytes(SIGNED_BYTES), b"the-secret-of-whoever-sends-here"

    def once() -> float:
        began = time.process_time_ns()
        for _ in range(100):
            hmac.digest(key, body, "sha1")
        return (time.process_time_ns() - began) / 100 / (SIGNED_BYTES >> 10) / 1000

    return min(once() for _ in range(5))


def tls_us_per_kib(authority: Authority, certificate: Pair) -> float:
    """Return what encrypting and decrypting a KiB with TLS takes here, in us of processor time: the least of some tries."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = ssl.create_default_context(cafile=authority.ca_file).wrap_bio(to_client, to_server, server_hostname="localhost")
    for end in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    data, received = bytes(ENCRYPTED_BYTES), bytearray(ENCRYPTED_BYTES)

    def once() -> float:
        began = time.process_time_ns()
        for _ in range(100):
            server.write(data)
            left = ENCRYPTED_BYTES
            while left:
                left -= cast("int", client.read(left, received))
        return (time.process_time_ns() - began) / 100 / (ENCRYPTED_BYTES >> 10) / 1000

    return min(once() for _ in range(5))


def verdicts(workload: str, result: Figures, added_us: Mapping[str, float]) -> dict[str, Figures]:
    """Return the ratios of a workload that have goals; ``added_us`` is what the cryptography of a side takes of a KiB."""
    rates = {name: float(one["messages_per_s"]["median"]) for name, one in result.items()}
    verb = workload.partition("-")[0]
    found: dict[str, Figures] = {
        f"{workload}, {name} / plain": verdict(rate / rates[PLAIN], OF_PLAIN[verb, name])
        for name, rate in rates.items()
        if (verb, name) in OF_PLAIN
    }
    plain_us = result[PLAIN]["broker_cpu_us"]["median"] + result[PLAIN]["client_cpu_us"]["median"]
    for name, added in added_us.items():
        if (verb, name) in OF_PLAIN:
            found[f"{workload}, {name} / plain"]["limit"] = round(plain_us / (plain_us + added), 3)
    if THEIRS in rates:
        found[f"{workload}, ours / Apache's with TLS"] = verdict(rates[TLS] / rates[THEIRS], OF_THEIRS)
    return found


def measure(options: argparse.Namespace, directory: Path) -> Figures:
    """Run all rounds and return figures and verdicts."""
    authority = Authority(directory / "certificates")
    certificate = authority.issue("server")
    workloads = [replace(AUTO, name=f"auto-{kind}", topic=topic.name) for kind, topic in SENT.items()]
    workloads += [reading(f"consume-{kind}", None, options.messages, topic.name) for kind, topic in FILLED.items()]
    done: dict[str, dict[str, list[Figures]]] = {w.name: {} for w in workloads}
    with contextlib.ExitStack() as running:
        sides = running.enter_context(our_sides(directory / "ours", authority, certificate))
        if not options.only_ours:
            sides = [*sides, running.enter_context(theirs(directory / THEIRS, authority, certificate))]
        for side in {side.namesrv: side for side in sides}.values():
            make_topics(side, options.messages)
        for workload in workloads:
            for side in sides:
                warm_s = options.first_warm if side.name == THEIRS else min(rounds.OUR_FIRST_WARM_S, options.first_warm)
                one_round(side, sides, workload, warm_s, 1.0)
        for number in range(options.rounds):
            for workload, side in turns(number, workloads, sides):
                figures = measured(side, sides, workload, options)
                done[workload.name].setdefault(side.name, []).append(figures)
                cpu = f"CPU us a message: broker {figures['broker_cpu_us']:.2f} client {figures['client_cpu_us']:.2f}"
                print(f"round {number + 1}  {rounds.line(workload, side, figures)}   {cpu}", flush=True)
    result: dict[str, Figures] = {name: summary(figures) for name, figures in done.items()}
    found: dict[str, Figures] = {}
    hmac_us, tls_us = hmac_us_per_kib(), tls_us_per_kib(authority, certificate)
    for workload in workloads:
        found |= verdicts(workload.name, result[workload.name], {SIGNED: hmac_us, CHECKED: 2 * hmac_us, TLS: tls_us})
    return {"hmac_us_per_kib": round(hmac_us, 3), "tls_us_per_kib": round(tls_us, 3), "workloads": result, "verdicts": found}


def main() -> int:
    """Run the comparison and return the exit code."""
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.load.secured", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--rounds", type=int, default=5, help="rounds of each side and workload (5)")
    p.add_argument("--messages", type=int, default=500_000, help="messages in each topic to be read (500,000)")
    p.add_argument("--warm", type=float, default=0.2, help="seconds of load before counting (0.2)")
    p.add_argument("--first-warm", type=float, default=12.0, help="seconds of each load on Apache's side before the first round (12)")
    p.add_argument("--seconds", type=float, default=1.0, help="seconds counted (1); a longer load needs more disk")
    p.add_argument("--settle", type=float, default=10.0, help="seconds to wait at most for other load to end, before each figure (10)")
    p.add_argument("--only-ours", action="store_true", help="without Apache's side; no ratios to it then")
    p.add_argument("--directory", type=Path, help="where the stores go (a temporary directory)")
    options = p.parse_args()
    require_apache(not options.only_ours)
    with store_directory(options.directory, DISK_BYTES) as directory:
        result = measure(options, directory)
    setting: dict[str, Any] = {
        "rounds": options.rounds,
        "measure_s": options.seconds,
        "messages_consumed": options.messages,
        "body_bytes": BODY_BYTES,
        "queues": QUEUES,
        "flush": "ASYNC_FLUSH",
        "apache_version": None if options.only_ours else apache.VERSION,
    }
    write_result("load-secured" + ("-ours" if options.only_ours else ""), {"setting": setting, **result})
    return 0 if report_verdicts(result["verdicts"]) else 1


if __name__ == "__main__":
    sys.exit(main())
