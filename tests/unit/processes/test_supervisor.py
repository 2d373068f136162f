"""Supervision of child processes; the children are nameservers, the quickest to start."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from sprocketmq.processes.supervisor import MAX_LINE_BYTES, ChildFailed, Complaints, Supervisor
from sprocketmq.testing import wait_until


def namesrv(before):
    port = before["namesrv"].rpartition(":")[2] if before else "0"
    return ["namesrv", "--port", port]


def on_port(port):
    return lambda _: ["namesrv", "--port", str(port)]


@pytest.fixture
def taken():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.fixture
def supervisor():
    """Return ``supervisor(restart=True)``; its children are gone at the end."""
    made = []

    def make(*, restart, say=None):
        made.append(Supervisor(restart=restart, say=say))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_child_that_dies_comes_back_at_its_address_with_one_line_of_log(supervisor, caplog):
    one = supervisor(restart=True)
    one.start({"n": namesrv}, timeout_s=60)
    address, pid = one.ready("n")["namesrv"], one.pids["n"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: one.pids.get("n", pid) != pid)
    wait_until(lambda: accepts(address))
    assert one.ready("n")["namesrv"] == address
    ended = f'process_ended child=n pid={pid} reason="was ended by SIGKILL" restart_in_s=0.25'
    assert [record.getMessage() for record in caplog.records] == [ended]
    one.stop()
    assert one.pids == {}


def accepts(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def test_the_delay_before_a_start_doubles_while_a_child_cannot_come_back(supervisor, caplog):
    one = supervisor(restart=True)
    with socket.socket() as holder:
        one.start({"n": namesrv}, timeout_s=60)
        one.stop()
        holder.bind(("127.0.0.1", int(one.ready("n")["namesrv"].rpartition(":")[2])))
        holder.listen()
        with pytest.raises(ChildFailed, match="Address already in use"):
            one.start_again("n", timeout_s=60)
    one.start_again("n", timeout_s=60)
    caplog.clear()
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(one.pids["n"], signal.SIGKILL)
        wait_until(lambda: not one.pids)
        holder.bind(("127.0.0.1", int(one.ready("n")["namesrv"].rpartition(":")[2])))
        holder.listen()
        wait_until(lambda: len(caplog.records) == 3)
    assert [record.fields["restart_in_s"] for record in caplog.records] == [0.25, 0.5, 1]
    wait_until(lambda: one.pids and accepts(one.ready("n")["namesrv"]))


def test_a_child_that_cannot_start_says_why_and_the_others_can_be_stopped(supervisor, taken):
    one = supervisor(restart=True)
    with pytest.raises(
        ChildFailed, match=rf"b: ended with exit code 1: cannot listen on 127.0.0.1:{taken}: Address already in use"
    ) as failed:
        one.start({"a": namesrv, "b": on_port(taken)}, timeout_s=60)
    assert (failed.value.name, failed.value.code) == ("b", 1)
    pids = list(one.pids.values())
    one.stop()
    assert all(map(is_gone, pids))


def test_wrong_usage_is_told_by_its_exit_code_and_whole_text(supervisor, tmp_path):
    (tmp_path / "n.conf").write_text("listenPort=x\nbrokerName=a\n")
    one = supervisor(restart=True)
    with pytest.raises(ChildFailed) as failed:
        one.start({"a": lambda _: ["namesrv", "--config", str(tmp_path / "n.conf")]}, timeout_s=60)
    assert failed.value.code == 2
    assert "2 lines cannot be followed\n  line 1: listenPort must be a whole number" in failed.value.reason


def test_without_restart_a_child_stays_away(supervisor, caplog):
    one = supervisor(restart=False)
    one.start({"n": namesrv}, timeout_s=60)
    pid = one.pids["n"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: caplog.records)
    assert one.pids == {}
    assert caplog.records[0].getMessage() == f'process_ended child=n pid={pid} reason="was ended by SIGKILL"'
    one.start_again("n", timeout_s=60)
    assert one.pids["n"] != pid


def test_a_killed_child_is_not_started_again_until_it_is_asked_for(supervisor, caplog):
    one = supervisor(restart=True)
    one.start({"n": namesrv}, timeout_s=60)
    pid = one.pids["n"]
    one.kill("n")
    assert is_gone(pid)
    assert one.pids == {}
    assert not caplog.records
    one.start_again("n", timeout_s=60)
    pid = one.pids["n"]
    one.start_again("n", timeout_s=60)
    assert one.pids["n"] == pid


def test_a_child_that_does_not_stop_in_time_is_killed(supervisor, caplog):
    one = supervisor(restart=True)
    one.start({"n": namesrv}, timeout_s=60)
    pid = one.pids["n"]
    os.kill(pid, signal.SIGSTOP)
    one.stop(timeout_s=0.2)
    assert is_gone(pid)
    assert caplog.records[0].getMessage() == f'process_killed child=n pid={pid} reason="it did not stop in time"'


def test_a_child_that_is_never_ready_is_given_up(supervisor):
    one = supervisor(restart=True)
    with pytest.raises(ChildFailed, match="n: it was not ready in time"):
        one.start({"n": namesrv}, timeout_s=0.001)
    one.stop(timeout_s=60)
    assert one.pids == {}


def test_a_start_under_way_ends_with_a_stop(supervisor):
    one = supervisor(restart=True)
    threading.Timer(0.01, one.stop).start()
    with pytest.raises(ChildFailed, match="it was stopped before it was ready"):
        one.start({str(n): namesrv for n in range(4)}, timeout_s=60)


def test_stages_of_a_chain_stop_one_after_the_other_and_chains_at_a_time(supervisor, monkeypatch):
    one = supervisor(restart=True)
    one.start(dict.fromkeys("abcde", namesrv), timeout_s=60)
    pids = one.pids
    names = {pid: name for name, pid in pids.items()}
    stopped, whole = [], subprocess.Popen.send_signal

    def send_signal(process, number):
        if names[process.pid] == "c":  # which does not stop before the other chain is at its end
            wait_until(lambda: is_gone(pids["e"]))
        stopped.append(names[process.pid])
        whole(process, number)

    monkeypatch.setattr(subprocess.Popen, "send_signal", send_signal)
    one.stop((["b"], ["c", "not there"]), (["d"], ["e"]))
    for first, later in ("bc", "de", "ec", "ca"):
        assert stopped.index(first) < stopped.index(later)
    assert sorted(stopped) == list("abcde")


def test_what_a_child_writes_is_passed_on_with_its_name(supervisor, caplog):
    said = []
    one = supervisor(restart=True, say=lambda name, line: said.append((name, line)))
    one.start({"n": namesrv}, timeout_s=60)
    host, _, port = one.ready("n")["namesrv"].rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: said)
    os.kill(one.pids["n"], signal.SIGKILL)
    wait_until(lambda: caplog.records)
    assert caplog.records[0].getMessage().endswith('reason="was ended by SIGKILL" restart_in_s=0.25')
    assert said[0][0] == "n"
    assert " WARNING sprocketmq.net" in said[0][1]


def test_children_do_not_get_the_interrupt_of_a_terminal(supervisor):
    one = supervisor(restart=True)
    one.start({"n": namesrv}, timeout_s=60)
    assert os.getpgid(one.pids["n"]) == one.pids["n"] != os.getpgid(0)


def test_children_stop_when_their_parent_is_killed():
    code = """
import os, signal
from sprocketmq.processes.supervisor import Supervisor
one = Supervisor(restart=True)
one.start({"n": lambda _: ["namesrv", "--port", "0"]}, timeout_s=60)
print(one.pids["n"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    wait_until(lambda: is_gone(pid) or is_zombie(pid), what="the end of the child")


def is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_supervisor_is_quick_to_import():
    code = "import sys, sprocketmq.processes.supervisor; print([m for m in sys.modules if m.startswith(('asyncio', 'sprocketmq.broker'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_line_without_end_is_passed_on_in_parts():
    script = f"import sys; sys.stderr.write('x' * {2 * MAX_LINE_BYTES} + 'end\\nnext')"
    heard = []
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    complaints = Complaints("n", process, lambda name, line: heard.append((name, line)))
    process.wait(60)
    complaints.close()
    complaints.release()
    assert heard == [("n", "x" * MAX_LINE_BYTES)] * 2 + [("n", "end"), ("n", "next")]
