"""Bytecode that Python runs without a look at its source: each way to put other code there."""

from __future__ import annotations

import importlib.util
import marshal
import platform

import pytest

from qualify.images import open_image, recompiling
from qualify.images.building.bytecode import compiled
from qualify.images.expectations import Expectations
from qualify.images.guards import Outcome, Subject
from qualify.images.guards.bytecode import bytecode
from qualify.images.limits import Limits
from qualify.images.recompiling import Verdict, compare, verdicts
from qualify.images.scan import scan_image
from support.images import ImageBuilder, file, hard_link, link

SOURCE = b"""\
LIMIT = 3
def accepts(trial, seen=()):
    for each in seen:
        if each is trial:
            return False
    return trial.passed and len(seen) < LIMIT
"""
EVIL = SOURCE.replace(b"trial.passed and len(seen) < LIMIT", b"True")
PATH = "opt/qualify/src/gate.py"
CODE = "opt/qualify/src/__pycache__/gate.cpython-313.pyc"
TAG = "cpython-313"


def made(source=SOURCE, path=PATH):
    data = compiled(source, f"/{path}")
    assert data is not None
    return data


def with_head(code, source=SOURCE, flags=1, magic=importlib.util.MAGIC_NUMBER):
    """`code` under the head that fits `source`."""
    return magic + flags.to_bytes(4, "little") + importlib.util.source_hash(source) + code[16:]


def release(version):
    return file("var/lib/dpkg/status.d/libpython3.13-minimal",
                f"Package: libpython3.13-minimal\nVersion: {version}-2+deb13u5\n")  # fmt: skip


def judge(tmp_path, *entries, version=None, ours=True):
    status = release(version or platform.python_version())
    image = open_image(ImageBuilder(layers=[[status, *entries]]).layout(tmp_path / "image"))
    expected = Expectations(image="runner" if ours else None)
    return bytecode(Subject(scan_image(image), expected, image))


def test_bytecode_of_its_source_passes(tmp_path):
    found = judge(tmp_path, file(PATH, SOURCE), file(CODE, made()))
    assert found.outcome is Outcome.PASSED
    assert found.summary == "1 have the hash of their sources, 1 their code"
    assert found.details == ()


ATTACKS = {
    "other code under the right hash": with_head(made(EVIL)),
    "bytecode of another source": made(EVIL),
    "other constants": with_head(made(SOURCE.replace(b"LIMIT = 3", b"LIMIT = 4"))),
    "by time": made()[:4] + bytes(4) + made()[8:],
    "flags that nobody knows": with_head(made(), flags=5),
    "another place": made(path="opt/other.py"),
    "bytes behind the code": made() + b"N",
    "cut short": made()[:-1],
    "no code": made()[:16],
    "a head alone": made()[:10],
    "the mark of another Python": b"\0\0" + made()[2:],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_bytecode_that_is_not_its_source_s_is_found(attack, tmp_path):
    found = judge(tmp_path, file(PATH, SOURCE), file(CODE, ATTACKS[attack]))
    assert found.outcome is Outcome.FAILED
    assert found.details[0].startswith(f"{CODE}: ")


@pytest.mark.parametrize("attack", ATTACKS)
def test_it_is_found_too_when_the_image_has_another_release_of_python(attack, tmp_path):
    found = judge(tmp_path, file(PATH, SOURCE), file(CODE, ATTACKS[attack]), version="3.13.99")
    assert found.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (file("opt/qualify/src/__pycache__/ghost.cpython-313.pyc", b"x"), "no source"),
        (file("opt/qualify/src/gate.pyc", b"x"), "no build of ours"),
        (file("opt/qualify/src/__pycache__/gate.cpython-313.opt-1.pyc", b"x"), "no build of ours"),
        (link("opt/qualify/src/__pycache__/other.cpython-313.pyc", "/tmp/x"), "is no file"),
        (link("opt/qualify/src/sub/__pycache__", "/var/__pycache__"), "leads to the bytecode"),
    ],
)
def test_bytecode_without_a_source_of_its_own_is_found(entry, said, tmp_path):
    found = judge(tmp_path, file(PATH, SOURCE), file(CODE, made()), entry)
    assert found.outcome is Outcome.FAILED
    assert len(found.details) == 1
    assert said in found.details[0]


def test_a_source_that_is_no_python_has_no_bytecode(tmp_path):
    source = b"print 'two'\n"
    found = judge(tmp_path, file(PATH, source), file(CODE, with_head(made(), source)))
    assert found.outcome is Outcome.FAILED
    assert "cannot be compiled" in found.summary


def other_instructions():
    """The same function with its comparison turned round: only instructions differ."""
    code = marshal.loads(made()[16:])
    inner = next(each for each in code.co_consts if hasattr(each, "co_code"))
    at = inner.co_code.index(0x02, 0)
    turned = inner.replace(co_code=inner.co_code[:at] + b"\x03" + inner.co_code[at + 1 :])
    assert turned.co_code != inner.co_code
    consts = tuple(turned if each is inner else each for each in code.co_consts)
    return with_head(made()[:16] + marshal.dumps(code.replace(co_consts=consts), 2))


def test_other_instructions_are_found_with_the_same_release(tmp_path):
    found = judge(tmp_path, file(PATH, SOURCE), file(CODE, other_instructions()))
    assert found.outcome is Outcome.FAILED
    assert "other instructions" in found.summary


def test_other_instructions_of_another_release_are_said_not_to_be_compared(tmp_path):
    entries = (file(PATH, SOURCE), file(CODE, other_instructions()))
    found = judge(tmp_path, *entries, version="3.13.99")
    assert found.outcome is Outcome.PASSED
    assert "the instructions of 1 were not compared (of Python 3.13.99, here is" in found.summary
    assert "guard with Python 3.13.99" in found.details[0]


def test_the_code_of_another_python_is_said_not_to_be_compared(tmp_path):
    import _imp

    magic = (3495).to_bytes(2, "little") + b"\r\n"
    name = CODE.replace("313", "311")
    head = magic + (1).to_bytes(4, "little") + _imp.source_hash(3495 + (0x0A0D << 16), SOURCE)
    found = judge(tmp_path, file(PATH, SOURCE), file(name, head + b"code"))
    assert found.outcome is Outcome.PASSED
    assert "0 their code; the code of 1 was not compared" in found.summary
    other = magic + (1).to_bytes(4, "little") + bytes(8)
    image = tmp_path / "b"
    image.mkdir()
    found = judge(image, file(PATH, SOURCE), file(name, other + b"code"))
    assert found.outcome is Outcome.FAILED


def test_sources_and_bytecode_meet_across_layers_links_and_equal_files(tmp_path):
    empty = "opt/qualify/src/{}/__init__.py"
    cache = "opt/qualify/src/{}/__pycache__/__init__.cpython-313.pyc"
    first = [file(empty.format(n), b"") for n in "abc"]
    second = [file(cache.format(n), made(b"", empty.format(n))) for n in "abc"]
    third = [hard_link("opt/qualify/src/d/__init__.py", empty.format("a")),
             file(cache.format("d"), made(b"", empty.format("d")))]  # fmt: skip
    image = open_image(ImageBuilder(layers=[second, first, third]).layout(tmp_path / "image"))
    found = bytecode(Subject(scan_image(image), Expectations(image="runner"), image))
    assert found.outcome is Outcome.PASSED
    assert found.summary.startswith("4 have the hash of their sources, 4 their code")


def test_the_source_that_a_later_layer_hides_does_not_count(tmp_path):
    layers = [[file(PATH, SOURCE), file(CODE, made())], [file(PATH, EVIL)]]
    image = open_image(ImageBuilder(layers=layers).layout(tmp_path / "image"))
    found = bytecode(Subject(scan_image(image), Expectations(image="runner"), image))
    assert found.outcome is Outcome.FAILED
    assert "another source" in found.summary


def test_what_is_too_large_to_be_read_is_unread(tmp_path):
    from qualify.images.guards.bytecode import pairs_of

    layers = [[file(PATH, SOURCE), file(CODE, made())]]
    image = open_image(ImageBuilder(layers=layers).layout(tmp_path / "image"))
    pairs, _ = pairs_of(scan_image(image).tree)
    assert [v for _, v in verdicts(image, pairs)] == [Verdict.SAME]
    assert [v for _, v in verdicts(image, pairs, limits=Limits(text=50))] == [Verdict.UNREAD]


def test_what_could_not_be_read_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(recompiling, "_HELD", 10)
    found = judge(tmp_path, file(PATH, SOURCE), file(CODE, made()))
    assert (found.outcome, found.details) == (Outcome.UNKNOWN, (CODE,))


def test_many_files_are_compared_in_processes_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(recompiling, "_BATCH", 2000)
    entries = []
    for number in range(recompiling._IN_PROCESS + 10):
        path = f"opt/qualify/src/m{number}.py"
        source = f"VALUE = {number}\n".encode()
        cache = f"opt/qualify/src/__pycache__/m{number}.cpython-313.pyc"
        wrong = number in (0, 100, recompiling._IN_PROCESS + 9)
        code = with_head(made(b"VALUE = -1\n", path), source) if wrong else made(source, path)
        entries += [file(path, source), file(cache, code)]
    found = judge(tmp_path, *entries)
    assert found.outcome is Outcome.FAILED
    assert len(found.details) == 3


def test_bytecode_is_never_loaded(monkeypatch):
    """Only what was compiled here is read by `marshal`."""
    loaded = []
    real = marshal.loads
    monkeypatch.setattr(
        recompiling.marshal, "loads", lambda data: loaded.append(data) or real(data)
    )
    hostile = with_head(made()[:16] + b"\xff" * 400)
    assert compare([(PATH, TAG, SOURCE, hostile)]) == [Verdict.CODE]
    assert loaded == [made()[16:]]


def test_every_cut_and_every_changed_byte_is_found():
    """Of what is not an instruction, one byte more or less is another code."""
    whole = made()
    for at in range(16, len(whole)):
        cut = compare([(PATH, TAG, SOURCE, whole[:at])])
        assert cut == [Verdict.CODE]
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        assert compare([(PATH, TAG, SOURCE, changed)])[0] in (Verdict.CODE, Verdict.INSTRUCTIONS)


def test_another_s_image_and_one_without_bytecode_are_not_asked(tmp_path):
    entries = (file(PATH, SOURCE), file(CODE, ATTACKS["bytecode of another source"]))
    assert judge(tmp_path / "a", *entries, ours=False).outcome is Outcome.NOT_APPLICABLE
    assert judge(tmp_path / "b", file(PATH, SOURCE)).outcome is Outcome.NOT_APPLICABLE
