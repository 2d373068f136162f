"""What the public names say of themselves: each has a docstring, and the examples in them run as they are printed."""

import ast
import asyncio
import inspect
import re
import textwrap

import pytest
from tests.unit.test_docs_reference import PACKAGES

from sprocketmq import AdminClient, Message, Namespace, Producer, PullConsumer, PushConsumer, TransactionProducer, arrow, sync
from sprocketmq.embedded import LocalCluster

# What most programs begin with.
SHOWN = [
    *(Namespace, Producer, Producer.send, Producer.send_batch, Producer.submit, Producer.request, TransactionProducer),
    *(PushConsumer.batches, PushConsumer.listen, PushConsumer.run, PullConsumer.pull, AdminClient.create_topic, sync.Producer),
    *(LocalCluster, arrow.read_topic, arrow.follow, arrow.read_store),
]
EXAMPLE = re.compile(r"^Example::\n\n((?: {4}.*\n|\n)+)", re.MULTILINE)


def public():
    """Return every public name with its object: classes, functions, and the methods and properties of classes."""
    for package in (*PACKAGES, arrow):
        for name in package.__all__:
            one = getattr(package, name)
            if inspect.isclass(one) or inspect.isfunction(one):
                yield f"{package.__name__}.{name}", one
            for base in inspect.getmro(one) if inspect.isclass(one) else ():
                if base.__module__.startswith("sprocketmq."):
                    for member, found in vars(base).items():
                        call = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
                        if not member.startswith("_") and inspect.isfunction(call):
                            yield f"{package.__name__}.{name}.{member}", call


def example_of(shown):
    found = EXAMPLE.findall(f"{inspect.cleandoc(shown.__doc__)}\n")
    assert len(found) == 1, f"{shown.__qualname__} has {len(found)} examples"
    return textwrap.dedent(found[0])


@pytest.fixture(scope="module")
def mq(tmp_path_factory):
    """A cluster as the examples want it, its store in the directory ``mq`` below the returned one."""
    where = tmp_path_factory.mktemp("examples")
    with LocalCluster(where / "mq") as running:
        running.create_topic("orders", queues=2)
        running.create_topic("questions", queues=1)
        running.create_topic("payments", queues=1)
        with sync.Producer("before", namesrv=running.namesrv) as producer:
            for n in range(20):
                producer.send(Message("orders", b"%d apples" % n))
        running.directory = where
        yield running


def test_every_public_name_has_a_docstring():
    assert [name for name, one in public() if not one.__doc__] == []


def test_only_what_runs_here_is_an_example():
    assert {name for name, one in public() if "Example::" in (one.__doc__ or "") and one not in SHOWN} == set()


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: f"{shown.__module__}.{shown.__qualname__}".removeprefix("sprocketmq."))
async def test_an_example_runs_as_it_is_printed(mq, monkeypatch, capsys, shown):
    monkeypatch.chdir(mq.directory)
    code = example_of(shown).replace("127.0.0.1:9876", mq.namesrv)
    program = compile(code, shown.__qualname__, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {"asyncio": asyncio}
    if program.co_flags & inspect.CO_COROUTINE:
        await eval(program, names)
    else:
        await asyncio.to_thread(exec, program, names)
    assert capsys.readouterr().out.strip()
