"""What the tests promise about themselves.

They wait for things instead of sleeping, are patient and measure no time, use free ports, and touch few private names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if path != Path(__file__))

# Who may sleep, and why. `asyncio.sleep(0)`, a turn of the loop, is not sleeping.
SLEEPERS = {
    "disturbed.py": "makes loops and threads late on request",
    "waiting.py": "the one place that waits for a moment in which nothing is to happen",
    "unit/client/consume/test_retry_with_broker.py": "paces a clock that is moved by hand",
    "unit/client/consume/test_group_live.py": "a handler that takes its time",
    "crash/test_kill.py": "the moment of a kill is random; sends that nobody answers are paced",
    "crash/test_send_back.py": "paces questions to another process",
    "faults/test_sends.py": "a fault lasts for some time",
    "faults/test_consuming.py": "a fault lasts for some time; a handler that takes its time",
    "faults/test_members.py": "the moments between steps are random; a handler that takes its time",
    "faults/test_replication.py": "a fault lasts for some time; sends that fail are paced",
    "interop/test_reading_from_slaves.py": "paces questions to brokers in other processes",
    "interop/cpp/program.py": "a program whose client tells nobody when it has sent or received",
    "interop/test_replication_metadata.py": "the slave of Apache's works by timers",
    "soak/load.py": "senders and chores are paced",
    "spark_faults/test_restarts.py": "the moment of a kill is random",
    "spark_faults/test_landing.py": "paces questions to another process",
    "spark_faults/test_tables.py": "paces questions to another process",
    "interop/apache.py": "paces questions to another process",
    "simulation/clients.py": "time is virtual",
    "simulation/cluster.py": "time is virtual",
    "simulation/logs.py": "time is virtual",
    "unit/testing/test_virtual_loop.py": "time is virtual",
    "interop/reading.py": "paces questions to another process",
    "interop/test_dashboard.py": "paces questions to another process",
    "interop/official_python.py": "what it sent is one-way",
    "interop/sides.py": "paces questions to another process",
    "interop/test_auto_batch.py": "paces questions to another process",
    "interop/test_stores_delayed.py": "paces questions to another process",
    "interop/test_mixed_groups.py": "a producer that goes on",
    "interop/test_mqadmin.py": "times of the other make's store differ",
    "interop/test_orderly.py": "a handler that takes its time",
    "interop/test_spark_source.py": "times of the other make's store differ",
    "interop/test_sync_flush.py": "a disk that is slow",
}
# A limit that ends what hangs is met by no machine that is only busy.
PATIENT_S = 30
# Calls that take such a limit, and the argument it is: by position (None: not at all), or by name.
GUARDS: dict[str, tuple[int | None, str]] = {
    "asyncio.timeout": (0, "delay"),
    "asyncio.wait_for": (1, "timeout"),
    "eventually": (None, "timeout_s"),
    "wait_until": (None, "timeout_s"),
    "subprocess.run": (None, "timeout"),
    "pytest.mark.timeout": (0, "timeout"),
}
# Methods that give up as well, of whatever object, when they are told to after a second or more: by name, and where the limit stands.
METHODS: dict[str, tuple[int, str]] = {
    "communicate": (1, "timeout"),
    "join": (0, "timeout"),
    "result": (0, "timeout"),
    "wait": (0, "timeout"),
}
# Other calls may have a limit of this name.
LIMITS = ("timeout_s", "timeout")
# They return what there is when the time is up, and are asked again.
ASKED_AGAIN = ("poll",)
# Waits that are to be in vain, and limits that are what a test is about.
IMPATIENT = {
    "crash/test_kill.py": "sends that end unknown, as their broker is killed",
    "crash/test_transactions.py": "sends that end unknown, as their broker is killed",
    "faults/test_reading_on.py": "sends that end unknown, as their master is killed",
    "faults/test_replication.py": "questions to a master that is killed",
    "interop/test_request_reply.py": "requests that nobody answers",
    "interop/test_security_java_client.py": "messages that must not come",
    "simulation/clients.py": "time is virtual",
    "unit/broker/test_acks.py": "the clock is moved by hand",
    "unit/client/send/test_older_brokers.py": "a greeting that nobody answers",
    "unit/client/send/test_delivery.py": "a third of their time goes to a broker that accepts no connection",
    "unit/client/send/test_producer.py": "a send that nobody answers, which another one outwaits",
    "unit/client/test_requests.py": "a question that is asked again",
    "unit/client/test_sync.py": "sends that nobody answers",
    "unit/testing/test_plugin.py": "what a wait says that was in vain",
    "unit/client/consume/test_group_live.py": "the loop of a wait that looks again",
    "spark/test_docs_programs.py": "the loop of a key that is pressed again",
    "spark_faults/test_restarts.py": "a pause of a producer that can be ended",
}

# Functions and methods that read a clock, and names of what took some time.
CLOCKS = (
    "monotonic",
    "monotonic_ns",
    "now_ms",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "thread_time",
    "time",
    "time_ms",
    "time_ns",
)
ELAPSED = re.compile(r"(elapsed|took|seconds|duration|waited)(_s|_ms)?")
# Who compares with what something took, and why.
TIMED: dict[str, str] = {
    "fuzz/test_fuzz_protocol.py": "fuzzes for a given time; processor time of seconds for a few KiB is a fault of a decoder",
    "simulation/test_planted_faults.py": "time is virtual",
    "soak/test_soak.py": "restarts nothing when the time of the load is over",
}

# Private names of the package, and of others, by the reason why a test uses them.
INSIDE: dict[str, dict[str, str]] = {
    "is the one place that reaches into clients, brokers and stores for all tests": {
        "inside.py": "_bind _held _instance _log _member _out _publishers _room _table",
    },
    "the loop of another system is made of asyncio's own parts": {
        "windows/proactor.py": "_call_connection_lost _called_connection_lost _detach _server _sock",
    },
    "a test says when the work of a timer or of a thread is done": {
        "spark/test_stream_reader.py": "_pause",
        "unit/broker/test_delay.py": "_levels _look",
        "unit/broker/test_indexing.py": "_index_timer _indexing _keys",
        "unit/broker/test_server.py": "_tell",
        "unit/client/consume/test_broker_requests.py": "_member",
        "unit/client/send/test_producer.py": "_refreshed_at",
        "unit/net/test_link.py": "_close_idle",
    },
    "that nothing is left, or that there is no more than a bound, shows only inside": {
        "faults/test_sends.py": "_client",
        "unit/broker/test_clients.py": "_of",
        "unit/broker/test_locks.py": "_groups",
        "unit/broker/test_pop.py": "_due _order",
        "unit/broker/test_replication_master.py": "_transport",
        "unit/broker/test_replication_stream.py": "_marks",
        "unit/client/send/test_encoding.py": "_heads _tails",
        "unit/client/test_sync.py": "_client _out",
        "unit/conftest.py": "_frames _receive",
        "unit/net/test_link.py": "_descriptors",
        "unit/net/test_tls_listener.py": "_descriptors",
        "unit/net/test_peerlog.py": "_left_out",
        "unit/security/test_guard.py": "_decisions",
        "unit/spark/test_access.py": "_open",
        "unit/spark/test_encode.py": "_levels",
        "unit/spark/test_land.py": "_open",
        "unit/storage/test_formats.py": "_files",
        "unit/testing/test_proxy.py": "_buffer",
    },
    "a state that is over before it shows outside is waited for": {
        "unit/broker/test_replication_follower.py": "_link",
        "unit/client/test_with_broker.py": "_server",
        "unit/net/test_tasks.py": "_timer",
        "unit/storage/index/test_index.py": "_files _loader",
        "unit/storage/log/test_preallocation.py": "_generation",
        "unit/test_background_tasks.py": "_fut_waiter",
    },
    "something inside is damaged, lost, broken or replaced on purpose": {
        "eager.py": "_enter_task _leave_task",
        "spark/test_demo.py": "_left_running _write",
        "spark/test_session.py": "_home",
        "unit/broker/test_batch_topics.py": "_topics",
        "unit/broker/test_recorded.py": "_put",
        "unit/cli/test_broker_restart.py": "_as_viewer _follow",
        "unit/client/consume/test_group_live.py": "_brokers _groups _servers _shut",
        "unit/client/test_instance.py": "_opening",
        "unit/net/test_link.py": "_limit",
        "unit/protocol/test_ids.py": "_count",
        "unit/spark/test_jvm_process.py": "_gateway _jvm",
        "unit/spark/test_rebuild_index.py": "_put_in_place",
        "unit/spark/test_sending.py": "_tasks",
        "unit/storage/bulk/test_pipeline.py": "_filled _received",
        "unit/storage/test_recovery.py": "_appender",
    },
    "one part is tested alone, without the whole that it belongs to": {
        "unit/broker/test_compatibility_table.py": "_handlers",
        "unit/broker/test_server.py": "_listens_at",
        "unit/spark/test_checks.py": "_source",
        "unit/spark/test_lag.py": "_duration",
        "unit/spark/test_sink.py": "_job",
        "unit/storage/bulk/test_pipeline_recovery.py": "_new",
    },
    "the name is another project's": {
        "spark/cluster_job.py": "_jsc",
        "spark/test_secured.py": "_jdf _jsc _jvm",
        "spark/test_demo_checks.py": "_data_directory",
        "unit/cli/test_pipeline.py": "_bar",
    },
}
# Attributes that begin with an underscore and are public all the same: of the standard library, and what notebooks ask objects for.
PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_repr_html_"}


# Nothing is cached: a million nodes that stay would make every later collection of garbage in this process take seconds.
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(node.func), node) for node in nodes_of(path) if isinstance(node, ast.Call) and is_plain(node.func)]


def is_plain(function: ast.expr) -> bool:
    """Return whether a function is called by its name, or by that of a module with dots."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name)


def name_of(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def test_nothing_is_waited_for_by_sleeping() -> None:
    sleeps: dict[str, list[int]] = {}
    for path in FILES:
        for function, call in calls(path):
            if function in ("time.sleep", "asyncio.sleep") and ast.unparse(call.args[0]) != "0":
                sleeps.setdefault(name_of(path), []).append(call.lineno)
    assert {name: lines for name, lines in sleeps.items() if name not in SLEEPERS} == {}, (
        "wait with sprocketmq.testing (eventually, wait_until), tests.waiting.stays or a ManualClock"
    )
    assert SLEEPERS.keys() - sleeps.keys() == set(), "these sleep no more: take them from the list"


def numbers_in(limit: ast.expr) -> Iterator[float]:
    """Yield the numbers that an argument may be: of a condition, both."""
    if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float) and not isinstance(limit.value, bool):
        yield limit.value
    elif isinstance(limit, ast.IfExp):
        yield from numbers_in(limit.body)
        yield from numbers_in(limit.orelse)


def limits_of(call: ast.Call) -> Iterator[float]:
    """Yield the limits below ``PATIENT_S`` that a call is given as numbers. What is no guard may be told to wait for a moment only."""
    function = ast.unparse(call.func) if is_plain(call.func) else ""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else function
    if function in GUARDS:
        position, *names = GUARDS[function]
        least = 0.001  # 0: none
    elif method in ASKED_AGAIN:
        return
    else:
        position, *names = (METHODS[method][0], *LIMITS) if method in METHODS else (None, *LIMITS)
        least = 1.0
    given = [word.value for word in call.keywords if word.arg in names]
    if position is not None:
        given += call.args[position : position + 1]
    yield from (limit for argument in given for limit in numbers_in(argument) if least <= limit < PATIENT_S)


def test_a_limit_that_ends_what_hangs_is_patient() -> None:
    impatient: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                for limit in limits_of(node):
                    said = f"{node.lineno}: {ast.unparse(node.func)} gives up after {limit} s"
                    impatient.setdefault(name_of(path), []).append(said)
    assert {name: said for name, said in impatient.items() if name not in IMPATIENT} == {}
    assert IMPATIENT.keys() - impatient.keys() == set(), "these are patient now: take them from the list"


def reads_a_clock(node: ast.AST) -> bool:
    """Return whether a real clock is read; what is called ``clock`` is one that the test moves."""
    if not isinstance(node, ast.Call):
        return False
    owner, _, name = ast.unparse(node.func).rpartition(".")
    return name in CLOCKS and not owner.endswith("clock")


def is_elapsed(value: ast.AST, names: set[str]) -> bool:
    """Return whether a value has to do with how long something took: a clock's time less another, or what is called so."""
    for node in ast.walk(value):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and any(map(reads_a_clock, ast.walk(node.left))):
            return True
        named = next((getattr(node, name) for name in ("id", "attr", "value") if isinstance(getattr(node, name, None), str)), "")
        if named in names or ELAPSED.fullmatch(named):
            return True
    return False


def upper_bounds(compared: ast.Compare) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a comparison says is less than what."""
    terms = [compared.left, *compared.comparators]
    for left, operator, right in zip(terms, compared.ops, terms[1:], strict=False):
        if isinstance(operator, ast.Lt | ast.LtE):
            yield left, right
        elif isinstance(operator, ast.Gt | ast.GtE):
            yield right, left


def test_nothing_has_to_be_fast() -> None:
    timed: dict[str, list[str]] = {}
    for path in FILES:
        nodes = nodes_of(path)
        names = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and is_elapsed(node.value, set())
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            for small, large in upper_bounds(node) if isinstance(node, ast.Compare) else ():
                patient = isinstance(large, ast.Constant) and isinstance(large.value, int | float) and large.value >= PATIENT_S
                if is_elapsed(small, names) and not patient:
                    timed.setdefault(name_of(path), []).append(f"{node.lineno}: {ast.unparse(node)}")
    assert {name: said for name, said in timed.items() if name not in TIMED} == {}, (
        "how fast a machine is, is measured by benchmarks; a test waits for things, or moves a clock by hand"
    )
    assert TIMED.keys() - timed.keys() == set(), "these measure no time now: take them from the list"


def test_no_server_has_a_port_of_its_own() -> None:
    fixed = [
        f"{name_of(path)}:{call.lineno}: {function}({word.arg}={word.value.value})"
        for path in FILES
        for function, call in calls(path)
        for word in call.keywords
        if word.arg in ("port", "namesrv_port") and isinstance(word.value, ast.Constant) and word.value.value not in (0, None)
    ]
    assert fixed == []


def private_names(path: Path) -> set[str]:
    """Return the private names of others that a file uses: not those it defines, nor those of its own objects and classes."""
    nodes = nodes_of(path)
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)} | PUBLIC
    used = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
            (own if ast.unparse(node.value) in ("self", "cls", "super()") else used).add(node.attr)
    return used - own


def test_private_names_are_left_alone_but_for_a_reason() -> None:
    allowed: dict[str, set[str]] = {}
    for files in INSIDE.values():
        for file, names in files.items():
            allowed.setdefault(file, set()).update(names.split())
    used = {name_of(path): names for path in FILES if (names := private_names(path))}
    assert {file: names - allowed.get(file, set()) for file, names in used.items() if names - allowed.get(file, set())} == {}, (
        "look at it from outside, or through tests.inside, or give a reason in INSIDE"
    )
    assert allowed == used, "what is used no more leaves the list"


def test_files_that_may_do_what_others_may_not_are_there() -> None:
    assert {*SLEEPERS, *IMPATIENT, *TIMED} <= {name_of(path) for path in FILES}
    assert all(re.fullmatch(r"[a-z].{10,}", reason) for reason in {*SLEEPERS.values(), *IMPATIENT.values(), *TIMED.values()})
