"""What changed between two images."""

from __future__ import annotations

from qualify.images import open_image
from qualify.images.difference import difference
from qualify.images.scan import scan_image
from support.images import distribution, file, python_image


def compare(a, b, tmp_path):
    first, second = open_image(a.layout(tmp_path / "a")), open_image(b.layout(tmp_path / "b"))
    return difference(first, scan_image(first), second, scan_image(second))


def test_equal_images_differ_in_nothing(tmp_path):
    found = compare(python_image(), python_image(compression="none"), tmp_path)
    assert found.changes == ()
    assert found.same_layers == 2


def test_settings_variables_and_labels_are_compared_one_by_one(tmp_path):
    a = python_image(env={"A": "1", "B": "1"}, labels={"x": "1"}, user="1")
    b = python_image(env={"A": "1", "B": "2", "C": "3"}, labels={"y": "1"}, user="2")
    found = compare(a, b, tmp_path)
    assert [(c.name, c.before, c.after) for c in found.of("configuration")] == [
        ("Env B", "1", "2"), ("Env C", None, "3"), ("User", "1", "2"),
    ]  # fmt: skip
    assert [(c.name, c.before, c.after) for c in found.of("label")] == [
        ("x", "1", None), ("y", None, "1"),
    ]  # fmt: skip


def test_packages_layers_and_files_are_named(tmp_path):
    a = python_image(more=[file("etc/a", "1"), file("etc/b", "1", 0o644)])
    b = python_image()
    b.layers[1] = distribution("alpha", "1.2.4", {"alpha/__init__.py": ""})
    b.layers.append(
        [file("etc/b", "1", 0o600), file("var/lib/dpkg/status.d/x", "Package: x\nVersion: 2\n")]
    )
    found = compare(a, b, tmp_path)
    assert [(c.name, c.before, c.after) for c in found.of("python")] == [
        ("alpha", "1.2.3", "1.2.4")
    ]
    assert [(c.name, c.after) for c in found.of("debian")] == [("x", "2")]
    assert [c.name for c in found.of("layer")] == ["2", "3"]
    assert found.same_layers == 1
    files = {c.name: (c.before, c.after) for c in found.of("file")}
    assert files["etc/a"][1] is None
    assert "0644" in files["etc/b"][0]
    assert "0600" in files["etc/b"][1]
    assert "etc/passwd" not in files


def test_a_file_that_gets_a_capability_differs(tmp_path):
    capable = {"SCHILY.xattr.security.capability": "x"}
    a = python_image(more=[file("usr/bin/ping", b"x", 0o755)])
    b = python_image(more=[file("usr/bin/ping", b"x", 0o755, pax=capable)])
    changed = compare(a, b, tmp_path).of("file")
    assert [c.name for c in changed] == ["usr/bin/ping"]
    assert "with file capabilities" in (changed[0].after or "")
