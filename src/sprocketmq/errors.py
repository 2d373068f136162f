"""All errors. Each has its data as attributes, and a text that says what to do next.

``SprocketError``
    ``ProtocolError``     invalid bytes or values: ``LocalProtocolError`` before sending them, ``RemoteProtocolError`` after receiving them
    ``RetriableError``    the same call may succeed later or elsewhere; nothing was stored
    ``FatalError``        repeating the same call will not help
    ``MaybeStoredError``  the answer was lost: the message may or may not be stored
    ``ConfigError``       an argument, option or environment is wrong; also a ``ValueError``
"""

from collections.abc import Sequence
from typing import ClassVar


class SprocketError(Exception):
    """Base of all errors of SprocketMQ."""


def _word(text: str) -> str:
    """Return a name or path as a shell takes it."""
    from shlex import quote  # imported for few errors: every program imports this module

    return quote(text)


class ProtocolError(SprocketError):
    """Bytes or values that the remoting protocol or a storage format does not allow."""


class LocalProtocolError(ProtocolError):
    """A value that the format cannot represent was to be written."""


class RemoteProtocolError(ProtocolError):
    """Bytes from a peer or a file are invalid."""


class SecretMismatch(RemoteProtocolError):
    """Master and slave do not have the same shared secret."""


class RetriableError(SprocketError):
    """The call failed before anything was stored; trying again, or elsewhere, may succeed."""


class FatalError(SprocketError):
    """The call was refused permanently; repeating it unchanged will not help."""


class MaybeStoredError(SprocketError):
    """The request was sent and not answered: the message may be stored or not."""

    def __init__(self, message: str, *, address: str = "", cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.address = address
        self.cause = cause


class ConfigError(SprocketError, ValueError):
    """An argument, option, name or environment is wrong."""


class NotOnWindows(FatalError, ImportError):
    """A server was asked for on Windows, or a store, where only clients run. Also an ``ImportError``: importing such a module raises it."""

    def __init__(self) -> None:
        super().__init__("servers, and commands that read their stores, need Linux or macOS: run them in WSL or a container")


class PartNotInstalled(FatalError, ImportError):
    """A module ``part``, of SprocketMQ or of a library, is not installed; ``command`` installs it. Also an ``ImportError``."""

    def __init__(self, part: str, command: str) -> None:
        super().__init__(f"{part} is not installed: {command}")
        self.part = part
        self.command = command


# --- names and messages -------------------------------------------------------------------------------------------------


class InvalidName(ConfigError):
    """A topic, group or tag that RocketMQ does not accept; ``index`` is the index of its message in a batch, or None."""

    def __init__(self, kind: str, name: object, reason: str, *, index: int | None = None) -> None:
        where = "" if index is None else f"message {index} of the batch: "
        super().__init__(f"{where}{kind} {name!r} is not valid: {reason}")
        self.kind = kind
        self.name = name
        self.reason = reason
        self.index = index


class MessageTooLarge(FatalError):
    """A message (or one message of a batch) is over the size limit, in bytes."""

    def __init__(self, size: int, limit: int, *, index: int | None = None) -> None:
        which = "message" if index is None else f"message {index} of the batch"
        super().__init__(f"{which} is {size} bytes, the limit is {limit}: send less, or raise max_message_bytes on producer and broker")
        self.size = size
        self.limit = limit
        self.index = index


class InvalidMessage(ConfigError):
    """A message that cannot be sent; ``index`` is its index in a batch, or None."""

    def __init__(self, reason: str, *, index: int | None = None) -> None:
        super().__init__(reason if index is None else f"message {index} of the batch: {reason}")
        self.reason = reason
        self.index = index


class NotAMessage(InvalidMessage, TypeError):
    """The object to send is not a Message; also a ``TypeError``."""


class BatchError(ConfigError):
    """A batch as a whole breaks a rule (empty, mixed topics); ``index`` names the offending message where there is one."""

    def __init__(self, reason: str, *, index: int | None = None) -> None:
        super().__init__(reason if index is None else f"message {index}: {reason}")
        self.reason = reason
        self.index = index


class BatchPartlySent(MaybeStoredError):
    """A batch too large for one request was stored in part: ``stored`` has the results of its first messages, ``cause`` the error.

    The other messages were not stored, unless ``cause`` is a MaybeStoredError: then they may be.
    """

    def __init__(self, stored: Sequence[object], total: int, *, address: str = "", cause: BaseException) -> None:
        super().__init__(f"only the first {len(stored)} of {total} messages of the batch are stored: {cause}", address=address, cause=cause)
        self.stored = stored
        self.total = total


# --- network ------------------------------------------------------------------------------------------------------------


class ConnectFailed(RetriableError):
    """Nothing accepted a connection at ``address``, where ``expected`` (broker, nameserver) should be."""

    def __init__(self, address: str, expected: str, reason: str) -> None:
        super().__init__(
            f"cannot connect to {address}: {reason} (expected a RocketMQ {expected} there; is it running, and is the port right?)"
        )
        self.address = address
        self.expected = expected
        self.reason = reason


class ConnectionLost(RetriableError):
    """The connection to ``address`` ended before the answer came."""

    def __init__(self, address: str, reason: str = "connection closed by the peer") -> None:
        super().__init__(f"connection to {address} lost: {reason}")
        self.address = address
        self.reason = reason


class TlsFailed(ConnectFailed):
    """The connection to ``address`` could not be encrypted as asked: ``problem`` says why, and no request was sent.

    The problems are ``untrusted``, ``expired``, ``not yet valid``, ``host name``, ``plain text`` (the server does not encrypt), ``closed``
    (during the handshake), ``client certificate`` (the server wants one, or refuses ours), ``needs tls`` (the server encrypts, this client
    does not) and ``other``.
    """

    _ADVICE: ClassVar = {
        "untrusted": "its certificate is not trusted ({detail}); set ca_file to the certificate of the authority that has signed it",
        "expired": "its certificate has expired ({detail}); the operator of the server must renew it; also check this machine's clock",
        "not yet valid": "its certificate is not valid yet ({detail}); check the clocks of this machine and of the server",
        "host name": "its certificate is for another name ({detail}); use a name that is in it as address, or set server_name to one",
        "plain text": "it answers in plain text; leave tls out, or enable TLS on the server",
        "closed": "it closed the connection during the TLS handshake; if TLS is off on the server, enable it there, or leave tls out",
        "client certificate": "it did not accept this client's certificate ({detail}); set cert_file and key_file to one that it trusts",
        "needs tls": "it speaks TLS on this port; pass tls=True, or TlsConfig(ca_file=...)",
        "other": "the TLS handshake failed ({detail}); compare the TLS versions and ciphers of both sides",
    }

    def __init__(self, address: str, expected: str, problem: str, detail: str = "") -> None:
        reason = self._ADVICE[problem].format(detail=detail)
        SprocketError.__init__(self, f"no encrypted connection to the {expected} at {address}: {reason}")
        self.address = address
        self.expected = expected
        self.reason = reason
        self.problem = problem


class NotRocketMQ(FatalError):
    """Something answered at ``address``, but it does not speak the RocketMQ remoting protocol."""

    def __init__(self, address: str, expected: str, found: str) -> None:
        super().__init__(
            f"{address} does not speak the RocketMQ remoting protocol ({found}); expected a {expected} there"
            " (nameservers usually listen on 9876, brokers on 10911; the gRPC proxy port 8081 and web ports do not work)"
        )
        self.address = address
        self.expected = expected
        self.found = found


class OtherServer(NotRocketMQ):
    """A RocketMQ server answered at ``address``, but not of the kind that was ``expected``."""

    def __init__(self, address: str, expected: str, found: str) -> None:
        SprocketError.__init__(
            self,
            f"{address} is a RocketMQ server, perhaps a broker, but no {expected} ({found}); expected a {expected} there"
            " (nameservers usually listen on 9876, brokers on 10911)",
        )
        self.address = address
        self.expected = expected
        self.found = found


class RequestTimeout(RetriableError):
    """No answer from ``address`` within ``timeout_ms``."""

    def __init__(self, address: str, code: int, timeout_ms: int) -> None:
        super().__init__(f"no answer from {address} to request {code} within {timeout_ms} ms")
        self.address = address
        self.code = code
        self.timeout_ms = timeout_ms


class SendTimeout(RetriableError):
    """A send timed out before it was sent to ``address``; nothing of it is stored."""

    def __init__(self, address: str, timeout_s: float) -> None:
        super().__init__(
            f"the send timed out after {timeout_s:g} s before it was sent to {address}: nothing is stored; send again, or allow more time"
        )
        self.address = address
        self.timeout_s = timeout_s


class NameserverUnavailable(RetriableError):
    """None of the nameservers answered."""

    def __init__(self, tried: Sequence[str], cause: BaseException | None = None) -> None:
        detail = f"; last: {cause}" if cause else ""
        super().__init__(f"no nameserver answered (tried {', '.join(tried) or 'none'}){detail}")
        self.tried: tuple[str, ...] = tuple(tried)
        self.cause = cause


class TopicNotFound(FatalError):
    """No nameserver knows a route for ``topic``, or the ``broker`` that was asked does not have it."""

    def __init__(self, topic: str, namesrv: str = "", *, broker: str = "") -> None:
        at = f" at nameserver {namesrv}" if namesrv else ""
        missing = f"topic {topic!r} does not exist at broker {broker}" if broker else f"topic {topic!r} has no route{at}"
        copied = "; a slave copies new topics from its master within seconds" if broker else ""
        creation = f"sprocketmq topic create {_word(topic)}"
        super().__init__(f"{missing}: create it first ({creation}) or allow auto-creation on the broker{copied}")
        self.topic = topic
        self.namesrv = namesrv
        self.broker = broker


class NoBroker(RetriableError):
    """No broker is registered at the nameserver ``namesrv``, so that nothing can be stored in ``topic`` or read from it now."""

    def __init__(self, topic: str, namesrv: str) -> None:
        super().__init__(
            f"no broker is registered at nameserver {namesrv}, so topic {topic!r} can neither be written nor read now: start a broker"
            " (sprocketmq serve), or wait until the brokers have registered again"
        )
        self.topic = topic
        self.namesrv = namesrv


class NoMaster(RetriableError):
    """No nameserver knows a master of ``brokers``, so that nothing can be stored in ``topic`` or changed there now."""

    def __init__(self, brokers: Sequence[str], topic: str = "") -> None:
        names = ", ".join(brokers)
        outcome = f"topic {topic!r} takes no messages now, nothing is stored" if topic else "nothing is changed"
        promotion = f"sprocketmq failover {_word(brokers[0])}"
        super().__init__(f"no nameserver knows a master of {names}: {outcome}; start it, or make a slave the master ({promotion})")
        self.brokers = tuple(brokers)
        self.topic = topic


class TopicReadOnly(FatalError):
    """No broker allows writing to ``topic``."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} takes no messages: no broker allows writing to it; change its permission (AdminClient.create_topic, perm=6),"
            " or that of its brokers (brokerPermission)"
        )
        self.topic = topic


class GroupNotFound(FatalError):
    """No broker knows the consumer group ``group``."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"no broker knows the consumer group {group!r}: create it (sprocketmq group create {_word(group)}), or start a member of it"
        )
        self.group = group


class BrokerError(FatalError):
    """A broker or nameserver refused the request permanently, with an error code."""

    def __init__(self, code: int, remark: str | None, *, address: str = "") -> None:
        reason = (remark or "").strip() or "no reason given"  # the remark about an unknown request begins with a space
        super().__init__(f"{address or 'the server'} refused with code {code}: {reason}")
        self.code = code
        self.remark: str = remark or ""
        self.address = address


class AccessRefused(BrokerError):
    """A server refused a request because of its sender: ``AuthenticationFailed`` or ``AuthorizationFailed``."""

    _ADVICE = ""

    def __init__(self, code: int, remark: str | None, *, address: str = "") -> None:
        super().__init__(code, remark, address=address)
        self.args: tuple[object, ...] = (f"{str(self).rstrip('.')}; {self._ADVICE}",)


class AuthenticationFailed(AccessRefused):
    """A server did not accept the credentials of this client; it refuses every request until they are correct."""

    _ADVICE = "pass credentials= with the access key and the secret key of a user that exists and is enabled there"


class AuthorizationFailed(AccessRefused):
    """The user of this client may not do what the request asks for; ``remark`` names user and resource."""

    _ADVICE = "have the right granted to this user (sprocketmq acl grant), or use the credentials of another one"


class BrokerBusy(RetriableError):
    """A broker refused the request for now (busy, store not writable, going away)."""

    def __init__(self, code: int, remark: str | None, *, address: str = "") -> None:
        super().__init__(f"{address or 'the server'} cannot serve now, code {code}: {remark or 'no reason given'}")
        self.code = code
        self.remark: str = remark or ""
        self.address = address


class SendQueueFull(RetriableError):
    """More messages are in flight than the producer may hold (``limit`` messages or bytes)."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"the producer already holds {limit} {what} in flight: await some results, or raise the limit")
        self.what = what
        self.limit = limit


class ReplyTimeout(MaybeStoredError):
    """A request was stored, and no reply came within ``timeout_s``: it may have been handled or not."""

    def __init__(self, topic: str, msg_id: str, timeout_s: float) -> None:
        super().__init__(
            f"no reply within {timeout_s:g} s to request {msg_id} to {topic!r}, which is stored and may be handled yet: "
            "look whether a consumer of the topic runs and replies, or give a longer timeout_s"
        )
        self.topic = topic
        self.msg_id = msg_id
        self.timeout_s = timeout_s


class RequesterGone(FatalError):
    """The reply cannot reach the producer of the request: it has disconnected, or its timeout has passed."""

    def __init__(self, client_id: str, remark: str) -> None:
        super().__init__(f"the reply cannot reach {client_id}, which has left or waits no longer ({remark}): drop the reply")
        self.client_id = client_id
        self.remark = remark


class NotARequest(ConfigError):
    """The message to reply to is not a request: its sender did not call ``request``."""

    def __init__(self, msg_id: str, missing: Sequence[str]) -> None:
        super().__init__(f"message {msg_id} is not a request, it lacks {', '.join(missing)}: reply to messages sent with request() only")
        self.msg_id = msg_id
        self.missing: tuple[str, ...] = tuple(missing)


class TransactionNotBegun(RetriableError):
    """A half message was stored with less durability than asked for (``status``): its transaction was rolled back."""

    def __init__(self, msg_id: str, status: str) -> None:
        super().__init__(f"half message {msg_id} is not stored as safely as asked ({status}), its transaction is rolled back: begin again")
        self.msg_id = msg_id
        self.status = status


class TransactionEnded(ConfigError):
    """The transaction has already been committed or rolled back; ``outcome`` is the name of the outcome."""

    def __init__(self, msg_id: str, outcome: str) -> None:
        super().__init__(f"transaction {msg_id} has an outcome already, {outcome}: tell it once")
        self.msg_id = msg_id
        self.outcome = outcome


class ClientClosed(FatalError):
    """The client was closed (or not started yet)."""


class SecretFileExposed(ConfigError):
    """A file with a secret may be read by other users of the machine."""

    def __init__(self, path: str, mode: int) -> None:
        fix = f"run chmod 600 {_word(path)}, and consider a new secret"
        super().__init__(f"{path} holds a secret and others may read it (mode {mode:04o}): {fix}")
        self.path = path
        self.mode = mode


class OffsetsLocked(ConfigError):
    """Another broadcasting consumer of the same group keeps its offsets in the same file."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is in use by another broadcasting consumer of the group on this machine: close it, or choose another offsets_dir"
        )
        self.path = path


class OffsetsNotSaved(RetriableError):
    """The offsets of a broadcasting consumer could not be written; the file is unchanged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"offsets were not saved to {path}: {reason}; they are written with the next commit, in 5 s")
        self.path = path
        self.reason = reason


class RebalanceFailed(FatalError):
    """The ``rebalance`` function of a consumer raised, or returned queues that do not exist; the assignment is unchanged."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the rebalance function failed: {reason}; the assignment is unchanged until the function is fixed")
        self.reason = reason


class WrongEventLoop(FatalError):
    """A client was used outside the event loop it was started on: in another thread, in another loop, or after its loop had ``ended``.

    ``missing``: it was to be started where no event loop of asyncio runs.
    """

    def __init__(self, name: str, *, ended: bool = False, missing: bool = False) -> None:
        if missing:
            reason = f"no event loop of asyncio runs where this {name} was to be started"
            advice = f"under trio call sprocketmq.sync.{name} in a thread (trio.to_thread.run_sync), or run AnyIO on asyncio"
        elif ended:
            reason = f"the event loop that this {name} was started on has ended (asyncio.run has returned)"
            advice = "close it before that, and make a new one in each loop"
        else:
            reason = f"this {name} belongs to another event loop or thread"
            advice = f"use sprocketmq.sync.{name} across threads, or make one in each loop"
        super().__init__(f"{reason}: {advice}")
        self.name = name
        self.ended = ended
        self.missing = missing


class ForkedClient(FatalError):
    """A client made before ``os.fork`` was used in the child."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this {name} was created before the process forked; create a new one in the child process")
        self.name = name


# --- storage and server start -------------------------------------------------------------------------------------------


class StoreLocked(ConfigError):
    """Another broker has locked the store directory; ``option`` selects another directory."""

    def __init__(self, path: str, pid: int | None = None, *, option: str = "--store") -> None:
        who = f" (process {pid})" if pid else ""
        super().__init__(f"store {path} is in use by another broker{who}: stop it, or choose another directory with {option}")
        self.path = path
        self.pid = pid


class StoreNotWritable(ConfigError):
    """The store directory cannot be created or written; ``option`` selects another directory."""

    def __init__(self, path: str, reason: str, *, option: str = "--store") -> None:
        super().__init__(f"store {path} is not writable: {reason}; choose another directory with {option} or change its permissions")
        self.path = path
        self.reason = reason


class StoreNotSupported(ConfigError):
    """A directory without a store, or with one that this broker must not open; ``next_step`` says what to do."""

    def __init__(self, path: str, reason: str, next_step: str) -> None:
        super().__init__(f"{path}: {reason}; {next_step}")
        self.path = path
        self.reason = reason
        self.next_step = next_step


class StoreDamaged(FatalError):
    """The commit log itself (not a derived file) cannot be read."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        root = path.partition("/commitlog")[0]
        more = f" (`sprocketmq verify {_word(root)}` shows more)" if root != path else ""
        super().__init__(f"store file {path} is damaged at byte {offset}: {reason}{more}")
        self.path = path
        self.offset = offset
        self.reason = reason


class StoreWriteFailed(RetriableError):
    """An append failed; none of it was acknowledged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot write to store {path}: {reason}")
        self.path = path
        self.reason = reason


class StoreFailed(FatalError):
    """A flush to disk failed: the store refuses writes until the broker is restarted."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"flush of {path} failed: {reason}; the store refuses writes until the broker is restarted")
        self.path = path
        self.reason = reason


class LogOffsetOutside(FatalError):
    """A log offset that is not in the commit log, which has ``[begin, end)``."""

    def __init__(self, log_offset: int, begin: int, end: int) -> None:
        super().__init__(f"log offset {log_offset} is outside of the commit log [{begin}, {end}): ask for one inside it")
        self.log_offset = log_offset
        self.begin = begin
        self.end = end


class ReplicaGap(FatalError):
    """Bytes for ``log_offset`` came while a replica's log ends at ``end``; nothing was written."""

    def __init__(self, log_offset: int, end: int) -> None:
        super().__init__(
            f"bytes at log offset {log_offset} cannot be appended to a replica that ends at {end}: connect again and ask from there"
        )
        self.log_offset = log_offset
        self.end = end


class StoreIsReplica(FatalError):
    """The store follows a master and takes no messages of its own."""

    def __init__(self, path: str) -> None:
        super().__init__(f"store {path} is a replica and takes no messages of its own: send to its master, or promote this broker")
        self.path = path


class BrokerNameTaken(ConfigError):
    """Another live broker of the same name and id is registered at a nameserver; it would lose its routes to the one that starts."""

    def __init__(self, broker_name: str, address: str, nameserver: str, broker_id: int = 0) -> None:
        super().__init__(
            f"nameserver {nameserver} has slave {broker_id} of broker {broker_name} at {address}, and it answers;"
            " choose another id (--broker-id), stop the other slave, or replace it (--take-over)"
            if broker_id
            else f"nameserver {nameserver} has a broker {broker_name} at {address}, and it answers: messages would go to two stores;"
            " choose another name (--name), stop the other broker, or replace it (--take-over)"
        )
        self.broker_name = broker_name
        self.address = address
        self.nameserver = nameserver


class CertificateRefused(ConfigError):
    """A file of a certificate, a key or authorities that a server cannot use; ``reason`` says why and what to do."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"TLS file {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


class PortInUse(ConfigError):
    """The port that a server should listen on is taken, or must not be bound."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"cannot listen on {host}:{port}: {reason}; choose another port (0 means any free port) or stop the process that uses it"
        )
        self.host = host
        self.port = port
        self.reason = reason
