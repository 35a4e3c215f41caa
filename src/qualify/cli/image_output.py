"""What `qualify image` prints, as tables and as JSON documents."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qualify.cli.tables import printable

if TYPE_CHECKING:
    from qualify.images.difference import Change, Difference
    from qualify.images.expectations import Expectations
    from qualify.images.guards import GuardResult
    from qualify.images.image import Image

_MARKS = {"passed": "✓", "failed": "✗", "unknown": "?", "not-applicable": "·"}
_COLOURS = {"passed": "green", "failed": "red", "unknown": "yellow"}
_SHOWN = 10


def size_text(count: int) -> str:
    """`1.12 GB`: decimal units, for people."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def inspection_document(image: Image) -> dict[str, Any]:
    """`qualify-image/1`."""
    settings = image.run_settings
    return {
        "schema": "qualify-image/1",
        "path": str(image.path),
        "kind": image.kind,
        "digest": image.digest,
        "name": image.reference,
        "platform": image.platform,
        "created": image.config.get("created"),
        "user": settings.get("User") or None,
        "working_directory": settings.get("WorkingDir") or None,
        "entrypoint": settings.get("Entrypoint"),
        "command": settings.get("Cmd"),
        "environment": image.environment,
        "labels": image.labels,
        "layers": [
            {
                "digest": layer.digest,
                "diff_id": layer.diff_id,
                "size": layer.size,
                "media_type": layer.media_type,
            }
            for layer in image.layers
        ],
        "size": image.size,
        "notes": list(image.notes),
    }


def print_inspection(image: Image) -> None:
    """The same, for people."""
    document = inspection_document(image)
    rows = [
        ("image", str(image.path)),
        ("kind", image.kind),
        ("digest", image.digest),
        ("name", image.reference),
        ("platform", image.platform),
        ("created", document["created"]),
        ("user", document["user"]),
        ("folder", document["working_directory"]),
        ("starts", " ".join(image.command) or None),
        *((f"  {name}", value) for name, value in sorted(image.environment.items())),
        ("labels", None if not image.labels else ""),
        *((f"  {name}", value) for name, value in sorted(image.labels.items())),
        ("layers", f"{len(image.layers)}, {size_text(image.size)} as stored"),
        *(
            (f"  {layer.index + 1}", f"{layer.digest or layer.diff_id}  {size_text(layer.size)}")
            for layer in image.layers
        ),
        *(("note", note) for note in image.notes),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        text = "-" if value is None else str(value)
        click.echo(f"{printable(name).ljust(width)}  {printable(text)}".rstrip())


def guard_document(
    image: Image | None, path: Path, expected: Expectations, results: tuple[GuardResult, ...]
) -> dict[str, Any]:
    """`qualify-image-guard/1`."""
    from qualify.images.guards import accepts

    return {
        "schema": "qualify-image-guard/1",
        "path": str(path),
        "digest": None if image is None else image.digest,
        "image": expected.image,
        "runtime": None if expected.runtime is None else expected.runtime.id,
        "accepted": accepts(results),
        "gpu_used": False,
        "guards": [
            {
                "guard": each.guard,
                "outcome": each.outcome.value,
                "summary": each.summary,
                "details": list(each.details),
            }
            for each in results
        ],
    }


def print_guards(image: Image | None, path: Path, results: tuple[GuardResult, ...]) -> None:
    """One line a guard; below it the places that one concerns which objects."""
    from qualify.images.guards import accepts

    click.echo(f"{printable(str(path))}  {image.digest if image else 'an environment'}\n")
    for note in image.notes if image else ():
        click.echo(f"note: {note}", err=True)
    width = max(len(each.guard) for each in results)
    for each in results:
        word = each.outcome.value
        mark = _styled(f"{_MARKS[word]} {word.ljust(14)}", _COLOURS.get(word))
        click.echo(f"{mark}  {each.guard.ljust(width)}  {printable(each.summary)}")
        if word in ("failed", "unknown") and len(each.details) > 1:
            for line in each.details[:_SHOWN]:
                click.echo(f"{' ' * (width + 20)}{printable(line)}")
            if len(each.details) > _SHOWN:
                click.echo(f"{' ' * (width + 20)}… {len(each.details) - _SHOWN} more (--json)")
    wrong = [each for each in results if each.outcome.value in ("failed", "unknown")]
    objecting = "1 guard objects" if len(wrong) == 1 else f"{len(wrong)} guards object"
    verdict = "every guard that applies passed" if accepts(results) else objecting
    click.echo(f"\n{verdict}; nothing of the image was run, and no GPU was used")


def _styled(text: str, colour: str | None) -> str:
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR")
    return text if plain or colour is None else click.style(text, fg=colour)


def difference_document(a: Image, b: Image, found: Difference) -> dict[str, Any]:
    """`qualify-image-diff/1`."""
    return {
        "schema": "qualify-image-diff/1",
        "before": {"path": str(a.path), "digest": a.digest},
        "after": {"path": str(b.path), "digest": b.digest},
        "same": not found.changes,
        "same_layers": found.same_layers,
        "changes": [
            {
                "topic": each.topic,
                "name": each.name,
                "before": each.before,
                "after": each.after,
            }
            for each in found.changes
        ],
    }


_TOPICS = ("configuration", "label", "layer", "python", "debian", "file")
_TITLES = {
    "configuration": "settings", "label": "labels", "layer": "layers",
    "python": "Python packages", "debian": "Debian packages", "file": "files",
}  # fmt: skip


def print_difference(found: Difference, limit: int) -> None:
    """The changes of each topic, `limit` of each (0: all)."""
    if not found.changes:
        click.echo("the same in settings, labels, layers, packages and files")
        return
    for topic in _TOPICS:
        changes = found.of(topic)
        if not changes:
            continue
        shared = f", {found.same_layers} the same" if topic == "layer" else ""
        click.echo(f"{_TITLES[topic]}: {len(changes)} differ{shared}")
        for each in changes[: limit or None]:
            click.echo(f"  {_change(each)}")
        if limit and len(changes) > limit:
            click.echo(f"  … {len(changes) - limit} more (--limit 0)")


def _change(each: Change) -> str:
    name = printable(each.name)
    if each.before is None:
        return f"+ {name}  {printable(each.after or '')}"
    if each.after is None:
        return f"- {name}  {printable(each.before)}"
    return f"~ {name}  {printable(each.before)} → {printable(each.after)}"
