"""Bytecode that depends on the source and its path, on nothing else."""

import marshal
import random
import subprocess
import sys
from dataclasses import dataclass

import pytest

from qualify.images.building import bytecode
from qualify.images.building.bytecode import compiled, with_bytecode

SOURCES = [
    (f"/x/m{n}.py", f"A = {{'a', 'b', {n}}}\nB = (1.5, 'text {n}', b'{n}')\n".encode())
    for n in range(200)
]


def test_the_order_and_the_processes_change_nothing():
    alone = [compiled(source, path) for path, source in SOURCES]
    shuffled = list(SOURCES)
    random.Random(3).shuffle(shuffled)
    made = dict(with_bytecode(shuffled, lambda item: item, 3))
    assert [made[item] for item in SOURCES] == alone


def test_a_fresh_interpreter_with_other_hashes_gives_the_same():
    code = (
        "import sys; from qualify.images.building.bytecode import compiled;"
        "sys.stdout.buffer.write(compiled(sys.stdin.buffer.read(), '/x/m.py'))"
    )
    source = b"S = {'alpha', 'beta', 'gamma', 1, 2.5}\nif 'x' in {'x', 'y', 'zz'}: pass\n"
    results = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=source,
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert results == {compiled(source, "/x/m.py")}


def test_references_that_the_process_holds_change_nothing():
    """Since version 3, marshal marks objects by their number of references at that moment."""
    source = b"def f(a):\n    if a in {'embedded'}:\n        return (a, 'two words', 1.5, 12345)\n"
    made = compiled(source, "/x/m.py")
    code = marshal.loads(made[16:])
    held = [constant for inner in code.co_consts if hasattr(inner, "co_consts")
            for constant in inner.co_consts]  # fmt: skip
    assert held
    assert marshal.dumps(code, bytecode._MARSHAL_VERSION) == made[16:]


def test_python_imports_it_without_looking_at_the_source(tmp_path):
    (tmp_path / "m.py").write_text("raise SystemExit('the source was read')\n")
    pyc = tmp_path / "__pycache__" / f"m.{sys.implementation.cache_tag}.pyc"
    pyc.parent.mkdir()
    pyc.write_bytes(compiled(b"print('from bytecode')\n", str(tmp_path / "m.py")))
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import m"], capture_output=True, text=True, check=True,
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout == "from bytecode\n"


def test_items_come_back_in_order_also_those_that_are_not_compiled():
    items = list(range(5000))
    made = list(with_bytecode(items, lambda n: (f"/{n}.py", b"x = 1\n") if n % 7 == 0 else None, 2))
    assert [item for item, _ in made] == items
    assert all((bytecode is not None) == (item % 7 == 0) for item, bytecode in made)


@dataclass
class Carrying:
    """Like a file of a package: its bytes are at hand whether they are compiled or not."""

    number: int
    data: bytes


@pytest.mark.parametrize(
    ("size", "count"), [(1 << 20, 400), (100 << 20, 5)], ids=["many files", "each over the bound"]
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["debian", "wheel"])
def test_files_that_are_not_compiled_wait_within_a_bound(size, count, wrapped):
    """Sources of a few bytes between them keep the order, and must not keep all files."""
    data = b"\0" * size
    state = {"held": 0, "most": 0}

    def items():
        for number in range(count):
            carrying = Carrying(number, b"x = 1\n" if number % 5 == 0 else data)
            state["held"] += len(carrying.data)
            state["most"] = max(state["most"], state["held"])
            yield ("wheel", carrying) if wrapped else carrying

    def source(item):
        file = item[1] if wrapped else item
        return (f"/{file.number}.py", file.data) if file.number % 5 == 0 else None

    order = []
    for item, code in with_bytecode(items(), source, 1):
        file = item[1] if wrapped else item
        assert (code is not None) == (file.number % 5 == 0)
        order.append(file.number)
        state["held"] -= len(file.data)
    assert order == list(range(count))
    assert state["held"] == 0
    assert state["most"] <= (64 << 20) + (8 << 20) + size


def test_what_is_no_python_has_none():
    assert compiled(b"print 'two'\n", "/x.py") is None
    assert compiled(b"\0", "/x.py") is None
    assert compiled(b"", "/x.py") is not None
