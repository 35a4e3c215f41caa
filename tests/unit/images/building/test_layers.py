"""What a layer holds, and what is refused on the way into one."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from qualify.images.building import debian_layer, image_layout, project_layer, wheel_layer
from qualify.images.building.layer_writer import BuildError, LayerWriter
from qualify.images.building.step import Step
from qualify.images.building.wheel import SITE
from support.pins import AARCH64, ELF_HEAD, X86_64, content, deb, described, entry, members, wheel

ROOT = Path(__file__).parents[4]
SETUID = 0o4755


@pytest.fixture
def place(tmp_path):
    """A function that makes a new folder."""

    def make(name: str):
        folder = tmp_path / name
        folder.mkdir()
        return folder

    return make


def wheels(out, *pins, cores=1):
    wheel_layer.main(Step({"title": "wheels", "wheels": list(pins)}, out, cores))
    return out


def debs(out, *pins, base=False, cores=1):
    spec = {"title": "debs", "base": base, "packages": list(pins)}
    debian_layer.main(Step(spec, out, cores))
    return out


def test_a_layer_says_what_it_is(place):
    folder = place("layer")
    with LayerWriter(folder, title="one", threads=1) as layer:
        layer.file("etc/motd", b"hello\n", "somebody")
    held = members(folder)
    assert list(held) == ["etc", "etc/motd"]
    assert (held["etc/motd"].uid, held["etc/motd"].mtime, held["etc/motd"].mode) == (0, 1, 0o644)


@pytest.mark.parametrize("path", ["/etc/motd", "../motd", "etc/../../motd", "", "."])
def test_a_path_that_leaves_the_root_is_refused(place, path):
    with (
        pytest.raises(BuildError, match="no path below the root"),
        LayerWriter(place("layer"), title="one", threads=1) as layer,
    ):
        layer.file(path, b"", "somebody")


def written(folder, *files):
    """Write (path, bytes, owner) into a layer."""
    with LayerWriter(folder, title="one", threads=2) as layer:
        for path, data, owner in files:
            layer.file(path, data, owner)


def test_an_error_leaves_no_layer(place):
    folder = place("layer")
    with pytest.raises(BuildError):
        written(folder, ("a", b"", "first"), ("a", b"", "second"))
    assert not (folder / "layer.json").exists()


def test_two_owners_of_a_path_are_both_named(place):
    with pytest.raises(BuildError, match="two packages own usr/a: first and second"):
        written(place("layer"), ("usr/a", b"1", "first"), ("usr/a", b"2", "second"))


def test_parts_of_a_namespace_may_be_equal(place):
    path = "nvidia/__init__.py"
    written(place("layer"), (path, b"", "first"), (path, b"", "second"))
    with pytest.raises(BuildError, match=rf"two packages own {path}"):
        written(place("other"), (path, b"", "first"), (path, b"1", "second"))


def test_equal_bytes_are_no_excuse_for_any_other_file(place):
    with pytest.raises(BuildError, match="with equal bytes"):
        written(place("layer"), ("nvidia/x", b"x", "first"), ("nvidia/x", b"x", "second"))


@pytest.mark.parametrize("paths", [("a", "a/b"), ("a/b", "a")])
def test_a_path_is_not_a_file_and_a_folder(place, paths):
    with pytest.raises(BuildError, match="folder"):
        written(place("layer"), (paths[0], b"", "first"), (paths[1], b"", "second"))


STORE_PATH = b"/nix/store/" + b"0123456789abcdfghijklmnpqrsvwxyz" + b"-python"


@pytest.mark.parametrize("before", [0, 10, (1 << 20) - 20, (1 << 20) - 1, 3 << 20])
def test_a_path_of_the_store_is_found_wherever_it_lies(place, before):
    data = bytes(before) + STORE_PATH + bytes(5000)
    with (
        pytest.raises(BuildError, match=r"lib.so of somebody holds a path of the Nix store"),
        LayerWriter(place("layer"), title="one", threads=1) as layer,
    ):
        layer.stream("lib.so", io.BytesIO(data), len(data), "somebody")


def test_a_word_about_the_store_is_no_path_of_it(place):
    with LayerWriter(place("layer"), title="one", threads=1) as layer:
        layer.file("a", b"see /nix/store/ and /nix/store/abc", "somebody")


def test_a_set_id_file_is_refused(place):
    with pytest.raises(BuildError, match="set-id"):
        debs(place("layer"), deb(place("in"), "sudo", [("./usr/bin/sudo", b"", SETUID)]))


def test_a_device_is_refused(place):
    with pytest.raises(BuildError, match="neither file, folder nor link"):
        debs(place("layer"), deb(place("in"), "udev", [entry("./dev/x", tarfile.CHRTYPE)]))


def test_a_debian_package_lies_where_the_merged_usr_has_it(place):
    package = deb(
        place("in"),
        "tool",
        [
            entry("./lib", tarfile.DIRTYPE),
            ("./lib/tool.so", b"", 0o644),
            ("./bin/tool", b"#!", 0o755),
            entry("./bin/alias", tarfile.SYMTYPE, link="tool"),
            entry("./bin/again", tarfile.LNKTYPE, link="./bin/tool"),
            ("./usr/share/man/man1/tool.1", b"", 0o644),
            ("./usr/share/doc/tool/README", b"", 0o644),
            ("./usr/share/doc/tool/copyright", b"MIT", 0o644),
            entry("./var/local", tarfile.DIRTYPE, mode=0o2775),
        ],
    )
    layer = debs(place("layer"), package)
    held = members(layer)
    assert {"usr/lib/tool.so", "usr/bin/tool", "usr/share/doc/tool/copyright"} <= set(held)
    assert not any("man" in path or path.endswith("README") for path in held)
    assert held["usr/bin/alias"].linkname == "tool"
    assert held["usr/bin/again"].linkname == "usr/bin/tool"
    assert held["var/local"].mode == 0o755
    assert content(layer, "var/lib/dpkg/status.d/tool").startswith(b"Package: tool\n")
    assert list(json.loads((layer / "stated.json").read_text())) == ["usr/share/doc/tool/copyright"]


def test_the_base_layer_has_what_maintainer_scripts_would_have_made(place):
    certificates = [
        (f"./usr/share/ca-certificates/mozilla/{name}.crt", f"{name}\n".encode(), 0o644)
        for name in ("b", "a")
    ]
    layer = debs(place("layer"), deb(place("in"), "ca-certificates", certificates), base=True)
    held = members(layer)
    assert held["tmp"].mode == 0o1777
    assert (held["home/qualify"].mode, held["home/qualify"].uid) == (0o700, 10001)
    assert content(layer, "etc/ssl/certs/ca-certificates.crt") == b"a\nb\n"
    assert b"qualify:x:10001:10001:" in content(layer, "etc/passwd")
    assert held["usr/bin/python3"].linkname == "python3.13"


def test_a_file_that_is_no_debian_package_is_named(place):
    path = place("in") / "x.deb"
    path.write_bytes(b"nothing")
    with pytest.raises(BuildError, match=r"x\.deb is no Debian package"):
        debs(place("layer"), {"name": "x", "version": "1", "path": str(path)})


def test_wheels_keep_their_bytes_with_bytecode_beside_them(place):
    pin = wheel(place("in"), "alpha", {"alpha/__init__.py": b"x = 1\n", "alpha/data.bin": b"\0"})
    layer = wheels(place("layer"), pin)
    assert content(layer, f"{SITE}/alpha/__init__.py") == b"x = 1\n"
    compiled = content(layer, f"{SITE}/alpha/__pycache__/__init__.cpython-313.pyc")
    assert compiled[4:8] == b"\x01\0\0\0", "hash-based, not checked"
    assert f"/{SITE}/alpha/__init__.py".encode() in compiled
    record = content(layer, f"{SITE}/alpha-1.0.dist-info/RECORD").decode()
    assert "alpha/__pycache__/__init__.cpython-313.pyc,,\n" in record
    assert content(layer, f"{SITE}/alpha-1.0.dist-info/INSTALLER") == b"qualify\n"


def test_the_data_of_a_wheel_is_spread_over_the_scheme(place):
    pin = wheel(
        place("in"),
        "alpha",
        {
            "alpha-1.0.data/scripts/tool": b"#!python\nprint()\n",
            "alpha-1.0.data/data/share/alpha/x": b"",
            "alpha-1.0.data/purelib/alpha.py": b"",
        },
    )
    layer = wheels(place("layer"), pin)
    assert content(layer, "usr/local/bin/tool").startswith(b"#!/usr/bin/python3\n")
    assert members(layer)["usr/local/bin/tool"].mode == 0o755
    assert {"usr/local/share/alpha/x", f"{SITE}/alpha.py"} <= set(members(layer))
    assert (
        "../../../bin/tool,sha256=" in content(layer, f"{SITE}/alpha-1.0.dist-info/RECORD").decode()
    )


def test_a_member_that_is_left_out_is_neither_in_the_layer_nor_in_its_record(place):
    files = {"build_backend.py": b"x = 1\n", "core.py": b""}
    pin = wheel(place("in"), "alpha", files)
    layer = wheels(place("layer"), {**pin, "left_out": ["build_backend.py"]})
    record = content(layer, f"{SITE}/alpha-1.0.dist-info/RECORD").decode()
    assert not any("build_backend" in text for text in [*members(layer), record])
    whole = wheels(place("whole"), pin)
    assert f"{SITE}/build_backend.py" in members(whole)


def test_a_member_to_leave_out_that_is_not_there_is_an_error(place):
    pin = wheel(place("in"), "alpha", {"core.py": b""})
    with pytest.raises(BuildError, match=r"alpha 1\.0 has no build_backend\.py to leave out"):
        wheels(place("layer"), {**pin, "left_out": ["build_backend.py"]})


def test_every_member_that_is_left_out_has_a_reason():
    listed = json.loads((ROOT / "src/qualify/images/data/left-out.json").read_text())
    assert listed
    for each in listed:
        assert set(each) == {"package", "path", "reason"}
        assert len(each["reason"]) > 20


def test_what_is_no_python_is_left_uncompiled(place):
    pin = wheel(place("in"), "alpha", {"alpha/template.py": b"print {{ x }} !\n", "beta.py": b""})
    held = members(wheels(place("layer"), pin))
    assert f"{SITE}/__pycache__/beta.cpython-313.pyc" in held
    assert not any("template.cpython" in path for path in held)


def library(machine, size=0):
    return ELF_HEAD + machine + bytes(size)


@pytest.mark.parametrize("size", [0, 1 << 17])
def test_a_wheel_whose_libraries_are_for_another_machine_is_named(place, size):
    pin = wheel(place("in"), "alpha", {"alpha/x.so": library(AARCH64, size)})
    with pytest.raises(BuildError, match=r"alpha 1\.0 is for another machine than x86_64: .*x\.so"):
        wheels(place("layer"), pin)


def test_libraries_for_this_machine_may_have_stubs_for_others_beside_them(place):
    ours, theirs = library(X86_64), library(AARCH64)
    folder = place("in")
    for name, files in (
        ("alpha", {"alpha/x.so": ours}),
        ("beta", {"beta/a.so.1": theirs, "beta/x.so": ours}),
        ("gamma", {"gamma/x.so": ours, "gamma/y.so": theirs}),
    ):
        wheels(place(f"{name}-layer"), wheel(folder, name, files))


def test_neither_cores_nor_the_order_of_pins_change_a_layer(place):
    files = {f"pkg/m{n}.py": f"x = {n!r}\ny = (1.5, 'a', {n})\n".encode() for n in range(300)}
    folder = place("in")
    one = wheel(folder, "one", {f"one/{path}": data for path, data in files.items()})
    two = wheel(folder, "two", {f"two/{path}": data for path, data in files.items()})
    first = described(wheels(place("first"), one, two, cores=1))
    second = described(wheels(place("second"), two, one, cores=3))
    assert first == second


def layout(out, *layers):
    spec = {
        "name": "test",
        "layers": [str(layer) for layer in layers],
        "config": {"User": "10001:10001"},
        "labels": {"a": "b"},
        "declarations": str(layers[-1] / "declarations"),
    }
    image_layout.main(Step(spec, out, 1))
    return out


def project(place, name, source=b"x = 1\n"):
    parts = {}
    for part in ("manifests", "corpora", "src"):
        parts[part] = place(f"{name}-{part}")
    (parts["src"] / "a.py").write_bytes(source)
    (parts["manifests"] / "one.yaml").write_text("id: one\n")
    spec = {
        "title": "project",
        "command": True,
        "parts": {part: str(folder) for part, folder in parts.items()},
    }
    out = place(name)
    project_layer.main(Step(spec, out, 1))
    return out


def test_a_layout_links_its_layers_and_names_its_declarations(place):
    from qualify.images.image import open_image

    first = wheels(place("first"), wheel(place("in"), "alpha", {"alpha.py": b""}))
    image = open_image(layout(place("layout"), first, project(place, "project")))
    assert len(image.layers) == 2
    assert image.labels["qualify.declarations"].startswith("sha256:")
    assert image.labels["a"] == "b"


def test_two_layers_do_not_own_one_path(place):
    pin = wheel(place("in"), "alpha", {"alpha.py": b""})
    first, second = wheels(place("first"), pin), wheels(place("second"), pin)
    with pytest.raises(BuildError, match=r"two packages own .*: alpha 1\.0 and alpha 1\.0"):
        layout(place("layout"), first, second)


def test_a_source_that_is_no_python_ends_the_build(place):
    with pytest.raises(BuildError, match=r"src/a\.py is no Python"):
        project(place, "project", b"def\n")
