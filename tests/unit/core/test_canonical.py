"""Canonical JSON against the RFC 8785 library, and everything that has no canonical form here."""

from __future__ import annotations

import json

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from qualify.core.canonical import NotCanonical, canonical_json

SAFE = 2**53 - 1
KEYS = st.text(st.characters(codec="ascii"), max_size=12)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-SAFE, SAFE) | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=30,
)


@given(VALUES)
def test_our_bytes_are_those_of_rfc_8785(value: object) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_the_order_of_keys_does_not_matter(value: dict[str, object]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert canonical_json(backwards) == canonical_json(value)


@given(VALUES)
def test_canonical_bytes_read_back_to_the_same_value(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (1.0, "$"),
        ({"a": [1, 0.5]}, "$.a[1]"),
        ({"ü": 1}, "$"),
        ({1: 1}, "$"),
        (SAFE + 1, "$"),
        ({"a": {"b": -SAFE - 1}}, "$.a.b"),
        ({"a": {1, 2}}, "$.a"),
        (b"bytes", "$"),
        ("\ud800", "$"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_place(value: object, path: str) -> None:
    with pytest.raises(NotCanonical) as caught:
        canonical_json(value)
    assert str(caught.value).startswith(f"{path}: ")


def test_the_largest_safe_integers_are_fine() -> None:
    assert canonical_json([SAFE, -SAFE]) == b"[9007199254740991,-9007199254740991]"
