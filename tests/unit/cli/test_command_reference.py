"""docs/reference/commands.md has every command and option of the command line, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from qualify.cli import cli

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/commands.md").read_text("utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ROOT_SECTION = "Options of `qualify` itself"
EVERYWHERE = {"-h", "--help"}


def sections() -> dict[str, str]:
    """Title of each second-level heading → its text."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def usage(path: str, command: click.Command) -> str:
    """How the command is called, without its options: `qualify matrix show ROW`."""
    context = click.Context(command, info_name=path)
    pieces = [p for p in command.collect_usage_pieces(context) if p != "[OPTIONS]"]
    return " ".join([path, *([] if isinstance(command, click.Group) else pieces)])


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be called, with the words that call it."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def options(command: click.Command) -> set[str]:
    """Long and short names of its options."""
    found = [p for p in command.params if isinstance(p, click.Option)]
    return {name for option in found for name in (*option.opts, *option.secondary_opts)}


def told(section: str) -> set[str]:
    """The options that the first column of the section's option table names."""
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `-")]
    return set(re.findall(r"`(--?[a-z][a-z-]*)", " ".join(cells)))


COMMANDS = dict(commands(cli, "qualify"))


def test_every_command_has_a_section_and_no_other_is_described() -> None:
    calls = {title.strip("`") for title in sections() if title != ROOT_SECTION}
    assert calls == {usage(path, command) for path, command in COMMANDS.items()}


@pytest.mark.parametrize("path", COMMANDS)
def test_the_section_names_exactly_the_options_of_its_command(path: str) -> None:
    command = COMMANDS[path]
    assert told(sections()[f"`{usage(path, command)}`"]) == options(command) - EVERYWHERE


def test_the_options_before_the_command_are_described() -> None:
    root = click.Context(cli, info_name="qualify")
    expected = {name for p in cli.get_params(root) for name in p.opts}
    assert told(sections()[ROOT_SECTION]) == expected | EVERYWHERE


def test_an_option_that_is_not_there_would_be_noticed() -> None:
    assert told("| `--suite SUITE` | x |\n| `--gone`, `-x` | `--not-an-option-cell` |\n") == {
        "--suite", "--gone", "-x",
    }  # fmt: skip


@pytest.mark.parametrize("link", re.findall(r"\]\(#([^)]+)\)", PAGE))
def test_links_within_the_page_lead_to_a_section(link: str) -> None:
    anchors = {re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in sections()}
    assert link in anchors


def test_choices_are_named() -> None:
    for path, command in COMMANDS.items():
        section = sections()[f"`{usage(path, command)}`"]
        for option in command.params:
            if isinstance(option.type, click.Choice):
                for choice in option.type.choices:
                    assert f"`{choice}`" in section, f"{path} {option.name} {choice}"


def calls(text: str) -> set[str]:
    """Calls of the command in console blocks and code spans, without what follows a `;` or `|`."""
    found = re.findall(r"^\$ \./qualify (.+)$", text, flags=re.MULTILINE)
    found += re.findall(r"`(?:\./)?qualify ([^`]+)`", text)
    return {re.split(r"[;|]", call)[0].strip() for call in found}


def unknown(call: str) -> list[str]:
    """Words of a call that are no command and no option of it; words for something are skipped."""
    command: click.Command = cli
    known = options(cli) | EVERYWHERE
    wrong = []
    for word in call.split():
        name = word.partition("=")[0]
        if name.startswith("-") and name != "-":
            wrong += [] if name in known else [name]
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                break_off = command.invoke_without_command or not word.islower()
                return wrong if break_off else [*wrong, word]
            command, known = found, options(found) | EVERYWHERE
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_call_on_every_page_can_be_made(page: Path) -> None:
    assert [(c, unknown(c)) for c in sorted(calls(page.read_text("utf-8"))) if unknown(c)] == []


def test_a_call_that_cannot_be_made_is_noticed() -> None:
    assert calls("$ ./qualify run x; y\nsee `qualify trial show T`") == {"run x", "trial show T"}
    assert unknown("ruun x") == ["ruun"]
    assert unknown("trial shw x") == ["shw"]
    assert unknown("trial list --rows x") == ["--rows"]
    assert unknown("trial list --row x --limit 0") == []
