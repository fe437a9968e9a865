"""What the reference describes: the `::: path` directives of its pages, resolved to the objects.

A group, `::: module: A B`, is expanded as on the site.

A directive of a class covers its fields and properties, which its entry has as a table, and the
methods that `members` names; without `members` all of them, with `members: false` none.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from docs.reference_groups import expanded

PAGES = Path(__file__).parents[2] / "docs" / "reference"
_DIRECTIVE = re.compile(r"^::: ([\w.]+)\n((?: {4}.*\n)*)", re.MULTILINE)
_MEMBERS = re.compile(r"\bmembers: (false|\[[^\]]*\])")


def public(kind: type) -> list[str]:
    """The public names that a class defines itself."""
    return sorted(name for name in vars(kind) if not name.startswith("_"))


def path_of(value: Any) -> str:
    """Where a class, function or method is defined, however it was reached."""
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(getattr(value, "func", value))  # a cached property
    return f"{value.__module__}.{value.__qualname__}"


@functools.cache
def described() -> dict[str, Any]:
    """Everything that has an entry in the reference, by where it is defined."""
    found: dict[str, Any] = {}
    for page in sorted(PAGES.glob("*.md")):
        for path, options in _DIRECTIVE.findall(expanded(page.read_text(encoding="utf-8")) + "\n"):
            value = _resolve(path)
            if not callable(value):
                continue
            found[path_of(value)] = value
            if inspect.isclass(value):
                found |= _members(value, _MEMBERS.search(f" {options}"))
    return found


def undescribed_parameters(value: Any) -> list[str]:
    """The parameters that the docstring of a class or function does not explain."""
    text = inspect.getdoc(value) or ""
    names = [
        one.name
        for one in inspect.signature(value).parameters.values()
        if one.name not in ("self", "cls")
    ]
    return [name for name in names if not re.search(rf"^ {{4}}\**{name}: ", text, re.MULTILINE)]


def fields_without_docstring(kind: type) -> list[str]:
    """The fields of a dataclass that no string below them describes."""
    [defined] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(defined, ast.ClassDef)
    found = []
    for field, below in zip(defined.body, [*defined.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            found += [] if said else [field.target.id]
    return found


def _resolve(path: str) -> Any:
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"The reference names {path}, which is not there.")


def _members(kind: type, named: re.Match[str] | None) -> dict[str, Any]:
    wanted = None
    if named is not None:
        wanted = [] if named[1] == "false" else re.findall(r"\w+", named[1])
    found = {}
    for base in kind.__mro__:
        if base.__module__.startswith("perdure"):
            for name in public(base):
                value = inspect.getattr_static(base, name)
                value = getattr(value, "__func__", value)  # of a class method
                is_field = isinstance(value, (property, functools.cached_property))
                if is_field or (inspect.isfunction(value) and (wanted is None or name in wanted)):
                    found[path_of(value)] = value
    return found
