"""A program as a picture: its nodes by group, and an arrow from each node to those that it can call."""

from __future__ import annotations

import dataclasses
import json

from rlpad.launch.program import Program

#: Groups of more nodes are drawn as one box, unless one asks for another number.
COLLAPSE_ABOVE = 3

#: What would mean something else to Mermaid inside of a label.
_MERMAID_CODES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": " "})

#: The same for Graphviz.
_DOT_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": " "})


def to_mermaid(program: Program, *, collapse_above: int = COLLAPSE_ABOVE) -> str:
    """Returns the program's graph as Mermaid text, which GitHub and many editors draw.

    Args:
      program: the program.
      collapse_above: groups of more nodes than this are one box, such as `actor x4`.

    Raises:
      LaunchError: the program couldn't be launched as it stands.
    """
    picture = _picture(program, collapse_above)
    lines = ["---", f"title: {json.dumps(program.name)}", "---", "flowchart LR"]
    for number, (group, boxes) in enumerate(picture.groups.items()):
        drawn = [f'{box.id}["{_code(box.name)}<br/>{_code(box.title)}"]' for box in boxes]
        if len(boxes) == 1:
            lines.append(f"  {drawn[0]}")
        else:
            lines += [f'  subgraph g{number}["{_code(group)}"]', *(f"    {box}" for box in drawn), "  end"]
    lines += [f"  {holder} --> {held}" for holder, held in picture.arrows]
    return "\n".join(lines) + "\n"


def to_dot(program: Program, *, collapse_above: int = COLLAPSE_ABOVE) -> str:
    """Returns the program's graph as text for Graphviz.

    Args:
      program: the program.
      collapse_above: groups of more nodes than this are one box, such as `actor x4`.

    Raises:
      LaunchError: the program couldn't be launched as it stands.
    """
    picture = _picture(program, collapse_above)
    lines = [
        f"digraph {_quote(program.name)} {{",
        '  graph [rankdir=LR, fontname="sans-serif"];',
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
    ]
    for number, (group, boxes) in enumerate(picture.groups.items()):
        drawn = [f"{box.id} [label={_quote(box.name, box.title)}];" for box in boxes]
        if len(boxes) == 1:
            lines.append(f"  {drawn[0]}")
        else:
            head = [f"  subgraph cluster_{number} {{", f"    label={_quote(group)};"]
            lines += [*head, *(f"    {box}" for box in drawn), "  }"]
    lines += [f"  {holder} -> {held};" for holder, held in picture.arrows]
    return "\n".join([*lines, "}"]) + "\n"


@dataclasses.dataclass(frozen=True)
class _Box:
    """What stands for a node, or for all nodes of a group.

    Attributes:
      id: its name in the text of the picture.
      name: the node's name, or the group's with the number of nodes.
      title: what is called there.
    """

    id: str
    name: str
    title: str


@dataclasses.dataclass(frozen=True)
class _Picture:
    """Boxes by group, and arrows between them by their ids: from who holds a handle to whom it refers to."""

    groups: dict[str, list[_Box]]
    arrows: list[tuple[str, str]]


def _picture(program: Program, collapse_above: int) -> _Picture:
    program.check()
    nodes = {str(node.name): node for top in program.nodes.values() for node in top.leaves()}
    by_group: dict[str, list[str]] = {}
    for name, node in nodes.items():
        by_group.setdefault(node.group, []).append(name)
    groups: dict[str, list[_Box]] = {}
    box_of: dict[str, str] = {}
    for group, names in by_group.items():
        collapsed = len(names) > collapse_above
        for members in [names] if collapsed else [[name] for name in names]:
            titles = dict.fromkeys(nodes[name].title for name in members)
            shown = f"{group} x{len(members)}" if collapsed else members[0]
            # Ids of ours, for both languages have words that can't be one.
            box = _Box(f"n{sum(map(len, groups.values()))}", shown, ", ".join(titles))
            groups.setdefault(group, []).append(box)
            box_of |= dict.fromkeys(members, box.id)
    arrows = {(box_of[name], box_of[handle.name]): None for name, node in nodes.items() for handle in node.handles}
    return _Picture(groups, list(arrows))


def _code(text: str) -> str:
    return text.translate(_MERMAID_CODES)


def _quote(*lines: str) -> str:
    return '"' + "\\n".join(line.translate(_DOT_ESCAPES) for line in lines) + '"'
