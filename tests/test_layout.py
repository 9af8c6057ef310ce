"""The shape of the source: who may import whom, how long things may be, what the core may not touch.

One thing to know: each rule is one test; its failure lists every offender as file:line, so it can be read alone.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gpuq"


class Rule(NamedTuple):
    """What the modules below `prefix` may import: anywhere, and only inside functions."""

    prefix: str
    anywhere: tuple[str, ...]
    inside_functions: tuple[str, ...] = ()


# The first rule whose prefix fits decides. Names are prefixes too: "gpuq.core" allows all of it. The standard
# library is always allowed, except in the core (see PURE_CORE_FORBIDS).
MATRIX = (
    Rule("gpuq.errors", ()),
    Rule("gpuq.units", ("gpuq.errors",)),
    Rule("gpuq.config", ("gpuq.errors", "gpuq.units"), ("tomli",)),
    Rule("gpuq.socketpath", ("gpuq.errors",)),
    Rule("gpuq.hardware", ("gpuq.errors",)),
    Rule("gpuq.core.states", ("gpuq.errors",)),
    Rule("gpuq.core.model", ("gpuq.core.states", "msgspec")),
    Rule("gpuq.core.requests", ("gpuq.core.model", "gpuq.core.states", "msgspec")),
    Rule("gpuq.core.events", ("gpuq.core.model", "gpuq.core.states", "msgspec")),
    Rule("gpuq.core", ("gpuq.core", "gpuq.errors", "gpuq.units", "msgspec")),
    Rule("gpuq.solve", ("gpuq.solve", "gpuq.core", "gpuq.errors", "gpuq.units", "msgspec", "ortools")),
    Rule("gpuq.learn", ("gpuq.learn", "gpuq.core", "gpuq.errors", "gpuq.units", "msgspec", "numpy")),
    Rule("gpuq.journal", ("gpuq.journal", "gpuq.core", "gpuq.errors", "gpuq.units", "gpuq.version", "msgspec")),
    Rule("gpuq.agent", ("gpuq.agent",), ("pynvml",)),
    Rule("gpuq.links", ("gpuq.links", "gpuq.errors", "gpuq.units", "gpuq.config")),
    Rule("gpuq.daemon.unit", ("gpuq.errors", "gpuq.config")),
    Rule(
        "gpuq.daemon",
        ("gpuq.daemon", "gpuq.core", "gpuq.journal", "gpuq.links", "gpuq.hardware", "gpuq.learn", "gpuq.config",
         "gpuq.socketpath", "gpuq.errors", "gpuq.units", "gpuq.version", "aiohttp", "msgspec"),
        ("gpuq.solve",),
    ),
    Rule(
        "gpuq.sim",
        ("gpuq.sim", "gpuq.core", "gpuq.learn", "gpuq.hardware", "gpuq.errors", "gpuq.units", "msgspec"),
        ("gpuq.solve",),
    ),
    Rule("gpuq.tui", ("gpuq.tui", "gpuq.cli.client", "gpuq.errors", "gpuq.units", "textual", "rich")),
    Rule("gpuq.cli.typed", ("gpuq.cli", "gpuq.errors", "gpuq.version", "typer", "click")),
    Rule(
        "gpuq.cli",
        ("gpuq.cli", "gpuq.errors", "gpuq.units", "gpuq.config", "gpuq.socketpath", "gpuq.version"),
        ("gpuq.daemon", "gpuq.core", "gpuq.journal", "gpuq.links", "gpuq.agent", "gpuq.hardware", "gpuq.learn",
         "gpuq.sim", "gpuq.tui", "gpuq.solve", "rich", "typer", "click"),
    ),
    Rule("gpuq.__main__", (), ("gpuq.cli.app",)),
    Rule("gpuq", ()),
)  # fmt: skip

PURE_CORE_FORBIDS = frozenset({
    "time", "random", "os", "asyncio", "logging", "sqlite3", "ortools", "datetime", "socket", "subprocess",
    "threading", "uuid", "pathlib", "io", "secrets", "tempfile", "shutil", "signal", "select", "multiprocessing",
})  # fmt: skip
PURE_CORE_FORBIDS_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__"})

CEILINGS = {  # lines; the longest fitting prefix decides
    "gpuq/errors.py": 150,
    "gpuq/units.py": 250,
    "gpuq/config.py": 350,
    "gpuq/socketpath.py": 100,
    "gpuq/__init__.py": 20,
    "gpuq/__main__.py": 20,
    "gpuq/core/model.py": 400,
    "gpuq/core/states.py": 200,
    "gpuq/core/state.py": 400,
    "gpuq/core/decide": 400,
    "gpuq/core/impact.py": 300,
    "gpuq/core/": 350,
    "gpuq/solve/model.py": 400,
    "gpuq/solve/": 250,
    "gpuq/learn/": 300,
    "gpuq/journal/": 350,
    "gpuq/agent/": 400,
    "gpuq/links/": 300,
    "gpuq/daemon/": 350,
    "gpuq/hardware/": 350,
    "gpuq/sim/": 350,
    "gpuq/cli/commands/": 150,
    "gpuq/cli/": 350,
    "gpuq/tui/": 350,
}
FUNCTION_CEILING = 60
FORBIDDEN_WORDS = ("worker", "manager", "handler", "helper", "helpers", "utils", "util", "service", "context")
TOP_LEVEL = frozenset({
    ".ci", ".git", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "NOTICE", "README.md",
    "bench", "completions", "docs", "examples", "gpuq", "pyproject.toml", "tests",
})  # fmt: skip


class Module(NamedTuple):
    """One source file, parsed."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def shown(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    def at(self, node: ast.AST) -> str:
        return f"{self.shown}:{getattr(node, 'lineno', 1)}"


class Import(NamedTuple):
    """One imported name, and whether it is left out when the module is loaded (a function, TYPE_CHECKING)."""

    name: str
    node: ast.stmt
    lazy: bool


def read(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text("utf-8")
    return Module(path, name, text, ast.parse(text, str(path)))


MODULES = tuple(read(path) for path in sorted(PACKAGE.rglob("*.py")) if "examples" not in path.parts)
KNOWN = frozenset(module.name for module in MODULES)


def inside(*prefixes: str) -> list[Module]:
    """The modules of these packages."""
    return [m for m in MODULES if any(m.name == prefix or m.name.startswith(prefix + ".") for prefix in prefixes)]


def imports_of(module: Module) -> Iterator[Import]:
    """Every import, relative ones resolved; `from p import m` names p.m where that is a module."""
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    lazy = {
        id(node)
        for top in ast.walk(module.tree)
        if isinstance(top, functions) or (isinstance(top, ast.If) and _is_for_types_only(top))
        for node in ast.walk(top)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node, id(node) in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(_module_or_member(base, alias.name), node, id(node) in lazy)


def _is_for_types_only(branch: ast.If) -> bool:
    return isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"


def _module_or_member(base: str, member: str) -> str:
    if base == "gpuq" and member == "__version__":
        return "gpuq.version"
    deeper = f"{base}.{member}"
    return deeper if deeper in KNOWN else base


def calls_in(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a plain name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def assert_none(offenders: list[str], rule: str) -> None:
    assert not offenders, f"{rule}:\n  " + "\n  ".join(sorted(offenders))


# --- imports ----------------------------------------------------------------------------------------------


def rule_of(module: Module) -> Rule:
    return next(rule for rule in MATRIX if within(module.name, (rule.prefix,)))


def test_imports_follow_the_matrix() -> None:
    """A module imports only what its row allows, and the lazy ones only inside functions."""
    offenders = []
    for module in MODULES:
        rule = rule_of(module)
        for found in imports_of(module):
            name = "gpuq.version" if found.name == "gpuq" else found.name
            if found.name.split(".")[0] in sys.stdlib_module_names or within(name, rule.anywhere):
                continue
            if within(name, rule.inside_functions):
                if not found.lazy:
                    offenders.append(f"{module.at(found.node)}: {found.name} only inside functions")
                continue
            offenders.append(f"{module.at(found.node)}: {found.name} is not among {rule.prefix}'s imports")
    assert_none(offenders, "The import matrix")


@pytest.mark.parametrize(("library", "owner"), [("ortools", "gpuq.solve"), ("sqlite3", "gpuq.journal")])
def test_one_owner_of_a_library(library: str, owner: str) -> None:
    """Only solve imports ortools, only the journal imports sqlite3; not even inside functions elsewhere."""
    offenders = [
        module.at(found.node)
        for module in MODULES
        for found in imports_of(module)
        if within(found.name, (library,)) and not within(module.name, (owner,))
    ]
    assert_none(offenders, f"{library} is imported only by {owner}")


def test_core_is_pure() -> None:
    """The core knows no clock, no randomness, no files, no threads and no network."""
    offenders = []
    for module in inside("gpuq.core"):
        offenders += [
            f"{module.at(found.node)}: {found.name}"
            for found in imports_of(module)
            if found.name.split(".")[0] in PURE_CORE_FORBIDS
        ]
        offenders += [
            f"{module.at(call)}: {name}()" for name, call in calls_in(module) if name in PURE_CORE_FORBIDS_CALLS
        ]
    assert_none(offenders, "The core is pure")


def test_core_loads_little() -> None:
    """Importing decide, apply and the planner's parts loads none of asyncio, sqlite3, ortools or aiohttp."""
    names = [m.name for m in inside("gpuq.core")]
    code = f"import importlib, sys; [importlib.import_module(n) for n in {names!r}]; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert loaded & {"asyncio", "sqlite3", "ortools", "aiohttp", "numpy", "subprocess"} == set()


def test_agent_stands_alone() -> None:
    """The agent imports nothing of gpuq outside itself, and only relatively, so that it runs as copied files."""
    offenders = []
    for module in inside("gpuq.agent"):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "gpuq":
                offenders.append(f"{module.at(node)}: {node.module}")
            if isinstance(node, ast.Import):
                offenders += [f"{module.at(node)}: {a.name}" for a in node.names if a.name.split(".")[0] == "gpuq"]
    assert_none(offenders, "The agent imports only relatively")


def test_agent_is_python_3_8() -> None:
    """The agent's files are read by Python 3.8: that is what nodes may have."""
    offenders = []
    for module in inside("gpuq.agent"):
        try:
            ast.parse(module.text, str(module.path), feature_version=(3, 8))
        except SyntaxError as error:
            offenders.append(f"{module.shown}:{error.lineno}: {error.msg}")
    assert_none(offenders, "The agent is Python 3.8")


# --- sizes ------------------------------------------------------------------------------------------------


def test_modules_stay_below_their_ceilings() -> None:
    """No module is longer than its ceiling; each has one."""
    offenders = []
    for module in MODULES:
        fitting = [prefix for prefix in CEILINGS if module.shown.startswith(prefix)]
        lines = module.text.count("\n")
        if not fitting:
            offenders.append(f"{module.shown}:1: no ceiling is stated for it")
        elif lines > (ceiling := CEILINGS[max(fitting, key=len)]):
            offenders.append(f"{module.shown}:1: {lines} lines, ceiling {ceiling}")
    assert_none(offenders, "Module ceilings")


def test_functions_stay_short() -> None:
    """No function is longer than 60 lines."""
    offenders = []
    for module in MODULES:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_CEILING:
                    offenders.append(f"{module.at(node)}: {node.name} has {lines} lines")
    assert_none(offenders, f"Functions of at most {FUNCTION_CEILING} lines")


# --- words and habits -------------------------------------------------------------------------------------


def test_every_module_says_what_it_owns() -> None:
    """Every module has a docstring."""
    offenders = [f"{m.shown}:1" for m in MODULES if not ast.get_docstring(m.tree)]
    assert_none(offenders, "Module docstrings")


def names_in(module: Module) -> Iterator[tuple[str, str]]:
    """The module's own name, its classes and its functions, with the place of each."""
    yield module.path.stem, f"{module.shown}:1"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, module.at(node)


def words_of(name: str) -> list[str]:
    """`NodeManager` and `node_manager` as their words, lower case."""
    spaced = "".join(f"_{letter}" if letter.isupper() else letter for letter in name)
    return [word.lower() for word in spaced.split("_") if word]


def test_words_that_say_nothing_are_not_names() -> None:
    """No module, class or function is called worker, manager, handler, helper, utils, service or context."""
    offenders = []
    for module in MODULES:
        for name, place in names_in(module):
            found = set(words_of(name)) & set(FORBIDDEN_WORDS)
            if found or name.startswith("task_"):
                offenders.append(f"{place}: {name}")
    assert_none(offenders, "Words that are not names")


def test_no_bare_except() -> None:
    """An except names what it catches."""
    offenders = [
        module.at(node)
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert_none(offenders, "No bare except")


def test_no_network_socket_is_made() -> None:
    """No module names an internet address family, a TCP site or a port to listen on."""
    marks = {"AF_INET", "AF_INET6", "create_server", "start_server", "TCPSite", "run_app", "SOCK_DGRAM"}
    offenders = []
    for module in MODULES:
        for node in ast.walk(module.tree):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in marks:
                offenders.append(f"{module.at(node)}: {name}")
    assert_none(offenders, "No network socket")


def test_only_the_command_line_prints() -> None:
    """print() is for the command line and for the last words of a process; all else logs, returns or raises."""
    offenders = [
        module.at(call)
        for module in MODULES
        if not within(module.name, ("gpuq.cli",)) and module.path.name != "__main__.py"
        for name, call in calls_in(module)
        if name == "print"
    ]
    assert_none(offenders, "No print outside the command line")


# --- the tree ---------------------------------------------------------------------------------------------


def test_top_level_is_closed() -> None:
    """Nothing stands at the top that the layout does not name; what git ignores does not count."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode == 0:
        found = {line.split("/")[0] for line in done.stdout.splitlines()}
    else:  # a source archive: nothing is ignored there
        found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert sorted(found - TOP_LEVEL) == []


def test_project_text_names_no_machine_path() -> None:
    """No text of the project names a directory of the machine it was written on."""
    home = str(Path.home())
    marks = ["/work" + "/main", "/work" + "/shared"] + ([home + "/"] if len(home) > len("/root") else [])
    texts = [*PACKAGE.rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").iterdir(), *ROOT.glob("*.md")]
    offenders = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts
        if path.is_file()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if any(mark in line for mark in marks)
    ]
    assert_none(offenders, "No machine paths")


# --- the rules themselves ---------------------------------------------------------------------------------


def test_imports_are_read_as_python_does() -> None:
    """The reading of imports resolves relative ones and tells those inside functions apart."""
    source = "from . import spool\ndef f() -> None:\n    from ..core import decide\n"
    module = Module(PACKAGE / "agent" / "probe.py", "gpuq.agent.probe", source, ast.parse(source))
    found = [(each.name, each.lazy) for each in imports_of(module)]
    assert found == [("gpuq.agent.spool", False), ("gpuq.core.decide", True)]


def test_guarantees_name_tests_that_exist() -> None:
    """Each of the twelve guarantees names at least one test, and every test named is there."""
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    sections = re.split(r"^## (G\d+) ", text, flags=re.MULTILINE)
    assert sections[1::2] == [f"G{number}" for number in range(1, 13)]
    bare = [name for name, body in zip(sections[1::2], sections[2::2], strict=True) if "::test_" not in body]
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    missing = [
        f"docs/guarantees.md: {file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or f"def {test}(" not in (ROOT / file).read_text("utf-8")
    ]
    assert bare == []
    assert_none(missing, "Guarantees rest on tests")
