"""A seeded tree of 500 files: everything planted is found where it is, and nothing else."""

from __future__ import annotations

from datetime import date

import pytest

from qualify.results.strings import table_strings
from qualify.scanning.kinds import KINDS
from qualify.scanning.scan import Report, scan
from qualify.scanning.selection import named
from support.planted import SHAPES, Planted, plant

TODAY = date(2026, 12, 1)


@pytest.fixture(scope="module", params=[1, 2, 20261201])
def tree(request: pytest.FixtureRequest, tmp_path_factory) -> tuple[list[Planted], Report]:
    root = tmp_path_factory.mktemp("tree") / "tree"
    planted = plant(root, request.param)
    return planted, scan(named(root, root), today=TODAY, tables=table_strings, processes=1)


def test_the_tree_has_hundreds_of_items_of_every_kind(tree):
    planted, report = tree
    assert report.files == 500
    assert len(planted) > 1000
    assert {item.kind for item in planted} == set(KINDS) - {"unread"}
    assert {item.what for item in planted} == set(SHAPES)


def test_every_planted_item_is_found_where_it_is(tree):
    planted, report = tree
    found = {(f.place.partition("!")[0], f.line or 0, f.kind) for f in report.findings}
    places = {(place, kind) for place, _, kind in found}
    missed = [
        (item.what, item.file, item.line, item.value)
        for item in planted
        if (
            (item.file, item.line, item.kind) not in found
            if item.line
            else (item.file, item.kind) not in places
        )
    ]
    assert missed == []


def test_nothing_is_found_that_was_not_planted(tree):
    planted, report = tree
    expected = {(item.file, item.kind) for item in planted}
    assert [f for f in report.findings if (f.place.partition("!")[0], f.kind) not in expected] == []


def test_no_finding_holds_a_value(tree):
    planted, report = tree
    text = repr(report)
    assert [item.what for item in planted if item.value in text] == []
