"""LangGraph projects as they are: every shape of graph that a langgraph.json may name is driven,
and what cannot be is refused with its file and key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.cli.graph_loading import load_project
from perdure.cli.project import Project, find_project
from perdure.errors import BadArgument
from perdure.types import State

AGENT = """
import contextlib, os
from pathlib import Path
from typing import TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph_sdk.runtime import ServerRuntime

class Letter(TypedDict, total=False):
    text: str

def write(state):
    return {"text": "written"}

builder = StateGraph(Letter).add_node(write).add_edge(START, "write")
compiled = builder.compile()
kept = builder.compile(checkpointer=InMemorySaver())
true = builder.compile(checkpointer=True)

@entrypoint()
def entry(given):
    return {"text": "written"}

def plain():
    return compiled

def of_config(config):
    assert config == {"configurable": {}}
    return builder

def of_default(config=None, *more, **options):
    return builder

def of_runtime(runtime: ServerRuntime):
    assert runtime.execution_runtime is not None
    return builder

async def coroutine(config):
    return builder

def returns_coroutine():
    return coroutine(None)

def note(word):
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(word + " ")

@contextlib.contextmanager
def manager(config):
    note("enter")
    yield builder
    note("leave")

@contextlib.asynccontextmanager
async def async_manager():
    note("enter")
    yield compiled
    note("leave")

def generator():
    note("enter")
    yield builder
    note("leave")

async def async_generator(config, runtime):
    note("enter")
    yield builder
    note("leave")

class Held:
    graph = compiled

number = 7
chain = compiled | (lambda state: state)

def of_two(user, tenant):
    return builder

def fails():
    raise KeyError("OPENAI_API_KEY")

def leaves():
    raise SystemExit("no key")
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Loading a project changes the process: its paths, its environment, its modules."""
    monkeypatch.delenv("PERDURE_URL", raising=False)
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    environment = dict(os.environ)
    yield
    forget(tmp_path)
    os.environ.clear()
    os.environ.update(environment)


def forget(folder: Path) -> None:
    """The modules of a project, as a new process would not have them."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


def project(folder: Path, said: Any, **files: str) -> Path:
    """A project in a folder; the key of a file is its path, with `__` for a slash."""
    folder.mkdir(exist_ok=True)
    files = {"agent": AGENT} | files
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "langgraph.json").write_text(said if isinstance(said, str) else json.dumps(said))
    return folder


def found(folder: Path) -> Project:
    there = find_project(folder)
    assert there is not None
    return there


async def output(rt: Any, graph: str) -> Any:
    """What a run of a graph comes to."""
    async with rt:
        run = await rt.start(graph, {})
        await rt.tick()
        ended = await rt.get(run.id)
        assert ended.state is State.DONE, ended
        return ended.output


@pytest.mark.parametrize(
    "name",
    [
        "builder",
        "compiled",
        "kept",
        "true",
        "entry",
        "plain",
        "of_config",
        "of_default",
        "of_runtime",
        "coroutine",
        "returns_coroutine",
        "manager",
        "async_manager",
        "generator",
        "async_generator",
        "Held.graph",
    ],
)
async def test_whatever_is_a_graph_or_makes_one_is_driven(tmp_path: Path, name: str) -> None:
    folder = project(tmp_path / "p", {"graphs": {"letter": f"./agent.py:{name}"}})
    assert await output(load_project(found(folder)), "letter") == {"text": "written"}
    notes = tmp_path / "notes"
    if "manager" in name or "generator" in name:
        assert notes.read_text() == "enter leave "


async def test_a_checkpointer_of_its_own_is_left_alone_and_told(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", {"graphs": {"letter": "./agent.py:kept"}})
    there = found(folder)
    rt = load_project(there)
    assert await output(rt, "letter") == {"text": "written"}
    kept = sys.modules["agent"].kept
    assert type(kept.checkpointer).__name__ == "InMemorySaver"
    assert list(kept.checkpointer.list(None)) == []
    assert there.notes == ["letter: its InMemorySaver is not used; the journal is"]


async def test_what_a_coroutine_makes_is_made_where_it_is_driven(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", {"graphs": {"letter": "./agent.py:async_manager"}})
    with load_project(found(folder)) as rt:
        run = rt.blocking.start("letter", {})
        with pytest.raises(BadArgument, match=r"letter: made by a coroutine.*async with"):
            rt.blocking.tick()
    assert not (tmp_path / "notes").exists()
    async with load_project(found(folder)) as rt:
        await rt.tick()
        assert (await rt.get(run.id)).state is State.DONE


async def test_one_that_cannot_be_made_leaves_nothing_open(tmp_path: Path) -> None:
    said = {"graphs": {"a": "./agent.py:async_manager", "b": "./late.py:make"}}
    late = "async def make():\n    raise OSError('no server')\n"
    rt = load_project(found(project(tmp_path / "p", said, late=late)))
    with pytest.raises(BadArgument, match=r'graph "b" .*OSError: no server \(late.py, line 2\)'):
        async with rt:
            raise AssertionError("it was opened")
    assert (tmp_path / "notes").read_text() == "enter leave "


# -- where modules are found


@pytest.mark.parametrize(
    ("dependencies", "place"),
    [
        (["."], "./src/shop/graph.py:graph"),
        (["./src", "langchain-openai"], "shop.graph:graph"),
        ([], "shop.graph:graph"),
        (["./src/shop", "."], "./src/shop/other.py:graph"),
        (["."], {"path": "src/shop/graph.py:graph", "description": "a shop"}),
    ],
    ids=range(5),
)
async def test_modules_are_imported_from_the_folders_it_depends_on(
    tmp_path: Path, dependencies: list[str], place: Any
) -> None:
    folder = project(
        tmp_path / "p",
        {"dependencies": dependencies, "graphs": {"shop": place}},
        src__shop____init__="",
        src__shop__words="WORD = 'written'\n",
        src__shop__graph="from .words import WORD\n"
        + AGENT.replace('"written"', "WORD")
        + "graph = compiled\n",
        src__shop__other="from words import WORD\n" + AGENT + "graph = compiled\n",
    )
    assert await output(load_project(found(folder)), "shop") == {"text": "written"}


async def test_a_folder_elsewhere_may_be_a_dependency(tmp_path: Path) -> None:
    (tmp_path / "shared" / "src").mkdir(parents=True)
    (tmp_path / "shared" / "src" / "elsewhere.py").write_text(AGENT)
    said = {"dependencies": [".", "../shared"], "graphs": {"a": "elsewhere:builder"}}
    folder = project(tmp_path / "p", said)
    assert await output(load_project(found(folder)), "a") == {"text": "written"}


NOTES = """
from dataclasses import dataclass
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

@dataclass
class Note:
    text: str

class Said(TypedDict, total=False):
    note: Note

def first(state):
    return {"note": Note("hello")}

def second(state):
    return {"note": Note(state["note"].text + interrupt("and?"))}

graph = StateGraph(Said).add_sequence([first, second]).add_edge(START, "first")
"""


@pytest.mark.parametrize("file", ["notes_agent", "my-agent", "types", "deep__er__json"])
async def test_its_own_types_are_the_same_in_the_next_process(tmp_path: Path, file: str) -> None:
    """Also in a file whose name is no module's, or that of another module."""
    place = f"./{file.replace('__', '/')}.py:graph"
    folder = project(tmp_path / "p", {"graphs": {"note": place}}, **{file: NOTES})
    async with load_project(found(folder)) as rt:
        run = await rt.start("note", {})
        await rt.tick()
        [wait] = await rt.waits()
    forget(tmp_path)
    async with load_project(found(folder)) as rt:
        await rt.answer(wait.id, ", world")
        await rt.tick()
        ended = await rt.get(run.id)
        assert ended.state is State.DONE, ended
        assert ended.output["note"].text == "hello, world"


# -- its journal, its environment


async def test_the_journal_is_beside_the_file_and_git_leaves_it_alone(tmp_path: Path) -> None:
    folder = project(tmp_path / "a 100% sure?", {"graphs": {"letter": "./agent.py:builder"}})
    there = found(folder)
    assert there.url.startswith("sqlite:////")
    assert not (folder / ".perdure").exists()  # looking makes nothing
    await output(load_project(there), "letter")
    kept = sorted(path.name for path in (folder / ".perdure").iterdir())
    assert kept == [".gitignore", "agents.db"]
    assert (folder / ".perdure" / ".gitignore").read_text() == "*\n"
    with perdure.Client(there.url) as client:
        assert len(client.blocking.runs()) == 1


async def test_the_journal_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"graphs": {"letter": "./agent.py:builder"}, "env": {"PERDURE_URL": "sqlite:///a.db"}}
    folder = project(tmp_path / "p", said)
    assert found(folder).url == f"sqlite:///{folder}/a.db"
    await output(load_project(found(folder)), "letter")
    assert (folder / "a.db").exists()
    monkeypatch.setenv("PERDURE_URL", f"sqlite:///{tmp_path}/b.db")
    await output(load_project(found(folder)), "letter")
    assert (tmp_path / "b.db").exists()
    assert not (folder / ".perdure").exists()


def test_its_env_is_set_and_what_was_set_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "before")
    folder = project(tmp_path / "p", {"graphs": {"letter": "./agent.py:builder"}, "env": ".env"})
    (folder / ".env").write_text("HERE=after\nexport THERE='new # one'\nALL=${THERE}\r\n")
    load_project(found(folder)).close()
    found_here = [os.environ[name] for name in ("HERE", "THERE", "ALL")]
    assert found_here == ["before", "new # one", "new # one"]


def test_an_env_file_that_is_not_there_is_told_and_no_error(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", {"graphs": {"letter": "./agent.py:builder"}, "env": ".env"})
    [note] = found(folder).notes
    assert note.startswith("env names .env, which does not exist")


# -- finding it, and what is wrong with it


def test_a_project_is_found_from_below_and_by_its_file(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", {"graphs": {"letter": "./agent.py:builder"}})
    (folder / "src" / "deep").mkdir(parents=True)
    for start in (folder, folder / "src" / "deep", folder / "langgraph.json", str(folder)):
        assert found(start).file == folder / "langgraph.json"  # type: ignore[arg-type]
    assert find_project(tmp_path) is None


def test_looking_at_a_project_imports_neither_it_nor_langgraph(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", {"graphs": {"a": "./agent.py:g"}}, agent="raise ImportError")
    code = (
        "import sys; from perdure.cli.project import find_project; "
        "find_project(sys.argv[1]).url; "
        "assert not {'langgraph', 'langchain_core', 'agent'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)


def test_a_graph_that_the_project_does_not_name_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from perdure.cli import main

    monkeypatch.delenv("PERDURE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "langgraph.json"
    file.write_text(json.dumps({"graphs": {"agent": "./agent.py:graph", "other": "./a.py:b"}}))
    found = find_project(tmp_path)
    assert found is not None
    (tmp_path / ".perdure").mkdir()
    perdure.Client(found.url).setup()
    cron = ["--cron", "0 9 * * *"]
    for typed in (["start", "agnet"], ["schedule", "daily", "agnet", *cron]):
        for place in ([], ["--at", "."]):
            assert main([*typed, *place]) == 2
            err = capsys.readouterr().err
            assert err == f"perdure: There is no graph 'agnet' in {file}; there is agent, other.\n"
    assert main(["start", "agent"]) == 0
    assert len(perdure.Client(found.url).blocking.runs()) == 1


def test_keys_that_are_for_a_server_or_an_image_are_no_error(tmp_path: Path) -> None:
    said = {
        "graphs": {"letter": "./agent.py:builder"},
        "python_version": "3.12",
        "node_version": "20",
        "dockerfile_lines": [],
        "http": {"disable_webhooks": True, "cors": {"max_age": 5}},
        "auth": {"path": "./auth.py:auth"},
        "ui": {},
    }
    assert found(project(tmp_path / "p", said)).notes == [
        "not used here: ui",
        "not used here: http.disable_webhooks",
        "not used here: http.cors.max_age",
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('{"graphs": ', "langgraph.json is not JSON.*line 1"),
        ("[]", "not a JSON object"),
        ({}, '"graphs" names no graph'),
        ({"graphs": {}}, '"graphs" names no graph'),
        ({"graphs": {"a": 7}}, 'graph "a" is 7; write its place'),
        ({"graphs": {"a": {"description": "x"}}}, 'graph "a" is .*write its place'),
        ({"graphs": {"a": "./agent.py"}}, "without a name: write './agent.py:graph'"),
        ({"graphs": {"a": "./agent.py:"}}, "without a name"),
        ({"graphs": {"a": "./src/agent.ts:graph"}}, 'graph "a" is JavaScript'),
        ({"graphs": {"a": "./agent.mjs"}}, 'graph "a" is JavaScript'),
        ({"graphs": {"a": "./agent.py:builder"}, "dependencies": "."}, "is a list"),
        (
            {"graphs": {"a": "./agent.py:builder"}, "dependencies": ["./no"]},
            "./no, .* not a folder",
        ),
        ({"graphs": {"a": "./agent.py:builder"}, "env": 3}, '"env" must be'),
        ({"graphs": {"a": "./none.py:builder"}}, 'graph "a" .*: there is no file none.py'),
        ({"graphs": {"a": "no.such:builder"}}, "there is no module 'no.such'"),
        ({"graphs": {"a": "./agent.py:none"}}, "has no 'none'; there is builder, .*compiled"),
        ({"graphs": {"a": "./agent.py:number"}}, "register\\(\\) takes a StateGraph.* not 7"),
        ({"graphs": {"a": "./agent.py:chain"}}, "register\\(\\) takes a StateGraph"),
        ({"graphs": {"a": "./agent.py:Held"}}, "it is the class Held"),
        ({"graphs": {"a": "./agent.py:of_two"}}, "requires 'user'"),
        ({"graphs": {"a": "./agent.py:fails"}}, "KeyError: 'OPENAI_API_KEY' \\(agent.py, line"),
        ({"graphs": {"a": "./agent.py:leaves"}}, "SystemExit: no key \\(agent.py, line"),
        ({"graphs": {"a": "./broken.py:graph"}}, "SyntaxError: .* \\(broken.py, line 2\\)"),
        ({"graphs": {"a": "./needs.py:graph"}}, "'not_installed' \\(needs.py, line 1\\).*pip inst"),
        ({"graphs": {"a@b": "./agent.py:builder"}}, "graph \"a@b\" .*must not contain '@'"),
    ],
    ids=range(25),
)
def test_what_is_wrong_is_told_with_the_file_and_the_key(
    tmp_path: Path, said: Any, told: str
) -> None:
    files = {"broken": "x = 1\ngraph = (\n", "needs": "import not_installed\n"}
    folder = project(tmp_path / "p", said, **files)
    with pytest.raises(BadArgument, match=told) as caught:
        load_project(found(folder))
    assert str(folder / "langgraph.json") in str(caught.value)


def test_a_line_of_an_env_file_that_says_nothing_is_told_by_its_number(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", {"graphs": {"a": "./agent.py:builder"}, "env": ".env"})
    (folder / ".env").write_text("A=1\n\nnothing at all\n")
    with pytest.raises(BadArgument, match=r"\.env, line 3"):
        find_project(folder)
