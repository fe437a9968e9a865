"""The runs below a run: its children, theirs, and so on, as a tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perdure.types import Run


@dataclass(frozen=True)
class Descendant:
    """A run below another one, without its output."""

    run: Run
    is_joined: bool
    """Whether a node of its parent joined it."""
    is_waited_for: bool
    """Whether its parent waits for it now."""
    siblings: int
    """How many children its parent has, with this one."""


@dataclass(frozen=True)
class Children:
    """Children of a run."""

    listed: tuple[TreeNode, ...] = ()
    """The oldest, in order."""
    left_out: int = 0
    """How many more there are."""


@dataclass(frozen=True)
class TreeNode:
    """A descendant with its own children."""

    descendant: Descendant
    children: Children

    @property
    def run(self) -> Run:
        return self.descendant.run

    @property
    def joined(self) -> str:
        """What its parent has to do with it, in words."""
        if self.descendant.is_waited_for:
            return "its parent waits for it"
        return "joined" if self.descendant.is_joined else ""


@dataclass(frozen=True)
class TreeLine:
    """One line of a tree that is drawn: a run, or how many children of a run are left out."""

    parent_id: str
    is_last: tuple[bool, ...]
    """From the top down to this line: whether it is the last of its siblings."""
    node: TreeNode | None = None
    left_out: int = 0


def run_tree(root: str, found: Iterable[Descendant]) -> Children:
    """The children of a run, with theirs."""
    by_parent: dict[str | None, list[Descendant]] = {}
    for one in found:
        by_parent.setdefault(one.run.parent_id, []).append(one)

    def below(id: str) -> Children:
        some = by_parent.pop(id, [])
        whole = max((one.siblings for one in some), default=0)
        listed = tuple(TreeNode(one, below(one.run.id)) for one in some)
        return Children(listed, max(0, whole - len(listed)))

    return below(root)


def tree_lines(root: str, children: Children, above: tuple[bool, ...] = ()) -> list[TreeLine]:
    """A tree line by line: each run is followed by what is below it."""
    lines: list[TreeLine] = []
    for number, node in enumerate(children.listed, 1):
        place = (*above, number == len(children.listed) and not children.left_out)
        lines.append(TreeLine(root, place, node))
        lines += tree_lines(node.run.id, node.children, place)
    if children.left_out:
        lines.append(TreeLine(root, (*above, True), left_out=children.left_out))
    return lines
