"""How the reference shows classes: an extension of Griffe, which reads the source for mkdocstrings.

The fields of a class and the members of an enum become one table, instead of a heading and a block
of code each. In the docstring of an error, `What to do:` is set in bold. A verb is declared as a
plan of its noun, and is shown as the method of `Client` that it becomes.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

REMEDY = re.compile(r"^What to do:", re.MULTILINE)


class ReferenceLayout(griffe.Extension):
    """Rewrites docstrings after the source was read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstrings of every class of a package."""
        _show_verbs(pkg)
        for module in _modules(pkg):
            for found in module.classes.values():
                if not found.is_alias and found.docstring is not None:
                    found.docstring.value = REMEDY.sub("**What to do:**", found.docstring.value)
                    _tabulate(found, found.docstring)


def _show_verbs(pkg: griffe.Module) -> None:
    """Replace the attributes of `client.Verbs` by methods with the signatures of their plans."""
    if "client" not in pkg.modules or "Verbs" not in pkg["client"].classes:
        return
    verbs = pkg["client.Verbs"]
    for attribute in list(verbs.attributes.values()):
        path = attribute.value.canonical_path.removeprefix(f"{pkg.path}.")
        plan = pkg[path]
        given = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        returns = plan.returns
        if isinstance(returns, griffe.ExprSubscript) and str(returns.left) == "Plan":
            returns = returns.slice
        method = griffe.Function(
            attribute.name,
            lineno=plan.lineno,
            endlineno=plan.endlineno,
            parameters=griffe.Parameters(given, *list(plan.parameters)[1:]),
            returns=returns,
            docstring=plan.docstring,
        )
        method.labels.add("async")
        verbs.set_member(attribute.name, method)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    inner = [one for one in module.modules.values() if not one.is_alias]
    return [module, *(found for one in inner for found in _modules(one))]


def _tabulate(found: griffe.Class, docstring: griffe.Docstring) -> None:
    """Move the docstrings of attributes into the section of the class, and add the values of an
    enum's members to it."""
    rows = []
    for one in found.attributes.values():
        if one.is_alias or one.name.startswith("_"):
            continue
        if one.docstring is not None:
            rows.append(f"    {one.name}{_type_of(one)}: {' '.join(one.docstring.value.split())}")
            one.docstring = None
        elif one.annotation is None:
            row = re.compile(rf"^    {one.name}:", re.MULTILINE)
            docstring.value = row.sub(f"    {one.name}{_type_of(one)}:", docstring.value)
    if rows:
        text, heading, raises = docstring.value.partition("\nRaises:")
        heads = [] if "\nAttributes:\n" in text else ["", "Attributes:"]
        section = "\n".join([*heads, *rows, ""])
        docstring.value = f"{text.rstrip()}\n{section}{heading}{raises}"


def _type_of(attribute: griffe.Attribute) -> str:
    """The type of a field, or the value of an enum's member."""
    shown = attribute.annotation or attribute.value
    return "" if shown is None else f" ({shown})"
