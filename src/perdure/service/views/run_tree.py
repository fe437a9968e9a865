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


@dataclass(frozen=True)
class TreeNode:
    """A descendant with its own children, oldest first."""

    descendant: Descendant
    children: tuple[TreeNode, ...]

    @property
    def run(self) -> Run:
        return self.descendant.run

    @property
    def joined(self) -> str:
        """What its parent has to do with it now, in words."""
        if self.descendant.is_waited_for:
            return "its parent waits for it"
        return "joined" if self.descendant.is_joined else ""


@dataclass(frozen=True)
class TreeLine:
    """A node in its place in a list, the way a tree is drawn."""

    node: TreeNode
    is_last: tuple[bool, ...]
    """Of each node from the top down to this one: whether it is the last among its siblings."""


def run_tree(root: str, found: Iterable[Descendant]) -> tuple[TreeNode, ...]:
    """The children of a run as trees. Each of the runs that were found comes after its parent."""
    by_parent: dict[str | None, list[Descendant]] = {}
    for one in found:
        by_parent.setdefault(one.run.parent_id, []).append(one)

    def below(id: str) -> tuple[TreeNode, ...]:
        return tuple(TreeNode(one, below(one.run.id)) for one in by_parent.pop(id, ()))

    return below(root)


def tree_lines(nodes: tuple[TreeNode, ...], above: tuple[bool, ...] = ()) -> list[TreeLine]:
    """Every node of a tree, each followed by what is below it."""
    lines: list[TreeLine] = []
    for number, node in enumerate(nodes, 1):
        place = (*above, number == len(nodes))
        lines += [TreeLine(node, place), *tree_lines(node.children, place)]
    return lines
