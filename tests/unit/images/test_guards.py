"""Each guard on an image that it accepts and on one that differs in just what it watches."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from qualify.images import open_image
from qualify.images.expectations import Expectations
from qualify.images.guards import GUARDS, Outcome, Subject, accepts, guard
from qualify.images.scan import scan_folder, scan_image
from qualify.manifests.kinds import Runtime
from support.images import (
    ImageBuilder,
    device,
    distribution,
    elf,
    file,
    folder,
    hard_link,
    link,
    python_image,
    safetensors,
)

SITE = "usr/lib/python3.13/site-packages"


def judge(made: ImageBuilder, tmp_path: Path, expected: Expectations | None = None):
    image = open_image(made.layout(tmp_path / "image"))
    subject = Subject(scan_image(image, tolerant=True), expected or Expectations(), image)
    return {each.guard: each for each in guard(subject)}


def runtime(**changes):
    base = {"id": "engine", "engine": "vllm", "lock": None, **changes}
    return Runtime.model_validate({**base, "vllm": {}} if "vllm" in Runtime.model_fields else base)


def test_a_sound_image_of_somebody_else_passes(tmp_path):
    results = judge(python_image(), tmp_path)
    assert [each for each in results.values() if each.outcome is Outcome.FAILED] == []
    assert accepts(tuple(results.values()))


def test_every_guard_says_what_it_asks():
    assert all(each.question.endswith(".") for each in GUARDS)
    assert len({each.name for each in GUARDS}) == len(GUARDS)


# ── weights ──────────────────────────────────────────────────────────────────────────────────────

MIB = 1 << 20


def torch_zip() -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
        archive.writestr("archive/data/0", b"\1" * MIB)
    return out.getvalue()


WEIGHTS = {
    "safetensors": ("opt/x.dat", safetensors()),
    "gguf": ("opt/readme.txt", b"GGUF" + struct.pack("<IQQ", 3, 0, 0)),
    "pickle": ("opt/cache", pickle.dumps(b"\0" * MIB, protocol=4)),
    "torch": ("opt/data", torch_zip()),
    "hdf5": ("opt/table", b"\x89HDF\r\n\x1a\n" + b"\0" * MIB),
    "named": ("opt/model.onnx", b"\x08\x07" + b"\1" * MIB),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_under_any_name_are_found(kind, tmp_path):
    path, data = WEIGHTS[kind]
    found = judge(python_image(more=[file(path, data)]), tmp_path)["weights"]
    assert found.outcome is Outcome.FAILED
    assert path in found.summary


@pytest.mark.parametrize(
    "data",
    [
        b"GGUF is a format\n",
        pickle.dumps({"small": 1}),
        b"PK\x03\x04" + b"\0" * 100,
        b"\0" * 8 + b'{"not": "a length"}',
        elf("libc.so.6", filler=MIB),
    ],
)
def test_what_only_resembles_weights_is_none(data, tmp_path):
    assert judge(python_image(more=[file("opt/x", data)]), tmp_path)["weights"].outcome == "passed"


def test_weights_that_a_later_layer_deletes_are_still_shipped(tmp_path):
    made = python_image()
    made.layers += [[file("opt/x", safetensors())], [file("opt/.wh.x")]]
    found = judge(made, tmp_path)["weights"]
    assert found.outcome is Outcome.FAILED
    assert "hidden by a later one" in found.summary


def test_a_file_allowed_by_digest_passes_and_says_why(tmp_path, monkeypatch):
    import hashlib

    from qualify.images import scan

    digest = hashlib.sha256(safetensors()).hexdigest()
    monkeypatch.setattr(scan, "allowed_weights", lambda: {digest: "constants"})
    found = judge(python_image(more=[file("opt/x", safetensors())]), tmp_path)["weights"]
    assert found.outcome is Outcome.PASSED
    assert found.details == ("opt/x: allowed, constants",)


def test_every_allowed_file_has_a_reason():
    from qualify.images.allowed import allowed_files

    for name in ("weights-allowed.json", "record-allowed.json"):
        assert all(len(reason) > 20 for reason in allowed_files(name).values())
        assert all(len(digest) == 64 for digest in allowed_files(name))


# ── writable ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (file("usr/bin/su", b"x", 0o4755), "setuid"),
        (file("usr/bin/wall", b"x", 0o2755), "setgid"),
        (file("etc/open", b"x", 0o666), "world-writable"),
        (folder("var/open", 0o777), "world-writable"),
        (device("dev/null"), "device"),
        (file("usr/bin/ping", b"x", 0o755, pax={"SCHILY.xattr.security.capability": "x"}), "capab"),
    ],
)
def test_a_surprising_permission_is_found(entry, said, tmp_path):
    found = judge(python_image(more=[entry]), tmp_path)["writable"]
    assert found.outcome is Outcome.FAILED
    assert said in found.summary


def test_a_hard_link_that_makes_its_file_setuid_is_found(tmp_path):
    tool = file("usr/bin/tool", b"x", 0o755)
    other = replace(hard_link("usr/bin/other", "usr/bin/tool"), mode=0o4755)
    found = judge(python_image(more=[tool, other]), tmp_path)["writable"]
    assert found.outcome is Outcome.FAILED
    assert "setuid" in found.summary


def test_ordinary_permissions_and_a_sticky_tmp_pass(tmp_path):
    entries = [file("usr/bin/tool", b"x", 0o755), folder("var/tmp", 0o1777), link("x", "tmp")]
    assert judge(python_image(more=entries), tmp_path)["writable"].outcome is Outcome.PASSED


# ── credentials ──────────────────────────────────────────────────────────────────────────────────

TOKEN = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
SECRETS = {
    "index": (
        "etc/pip.conf",
        "[global]\nindex-url = https://ci:s3cretw0rd@mirror.corp.net/simple\n",
    ),
    "extra": (
        "root/.config/uv/uv.toml",
        'index-url = "https://__token__:abc9def@host.corp.net/"\n',
    ),
    "netrc": ("root/.netrc", "machine mirror.corp.net\nlogin ci\npassword s3cretw0rd\n"),
    "docker": ("root/.docker/config.json", '{"auths":{"r.corp.net":{"auth":"Y2k6czNjcmV0"}}}'),
    "hub": ("home/me/.cache/huggingface/token", "opaque-value-without-prefix\n"),
    "token": ("srv/notes.txt", f"use {TOKEN} there\n"),
    "forge": ("srv/run.sh", "git clone x # ghp_" + "a1B2" * 9 + "\n"),
    "key": (
        "etc/host.key",
        "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBg" * 8 + "\n-----END PRIVATE KEY-----\n",
    ),
    "pypirc": ("root/.pypirc", "[pypi]\nusername = u\npassword = s3cretw0rd\n"),
    "direct": (
        f"{SITE}/alpha-1.2.3.dist-info/direct_url.json",
        '{"url": "https://ci:s3cretw0rd@git.corp.net/alpha.git"}',
    ),
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_credential_is_found_and_never_shown(kind, tmp_path):
    path, text = SECRETS[kind]
    found = judge(python_image(more=[file(path, text)]), tmp_path)["credentials"]
    assert found.outcome is Outcome.FAILED
    assert path in found.summary
    shown = found.summary + "".join(found.details)
    assert not any(s in shown for s in ("s3cretw0rd", "abc9def", TOKEN, "a1B2", "MIIE", "Y2k6"))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/pip.conf", "[global]\nindex-url = https://mirror.corp.net/simple\n"),
        ("usr/share/doc/x", "write https://user:password@host.corp.net or http://a:b@localhost/\n"),
        ("usr/share/doc/y", "https://me:$TOKEN@host.corp.net https://u:{secret}@h.corp.net\n"),
        ("usr/share/doc/z", "cvs://:pserver:anoncvs@host.corp.net:/cvs/src\n"),
        ("root/.docker/config.json", '{"auths": {"r.corp.net": {}}}'),
        ("etc/cert.pem", "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----\n"),
        (
            "srv/notes",
            "tokens begin with hf_ or ghp_ and AKIAIOSFODNN7EXAMPLE is in every manual\n",
        ),
        ("root/.netrc", "machine x login y password <token>\n"),
    ],
)
def test_placeholders_and_settings_without_secrets_pass(path, text, tmp_path):
    found = judge(python_image(more=[file(path, text)]), tmp_path)["credentials"]
    assert found.outcome is Outcome.PASSED


def test_a_credential_across_two_pieces_of_a_large_text_is_found(tmp_path):
    text = "x" * (MIB - 300) + "\nhttps://ci:s3cretw0rd@mirror.corp.net/\n" + "y\n" * MIB
    for shift in (0, 100, 290, 310):
        made = python_image(more=[file("a", b" " * shift), file("srv/big.txt", text[shift:])])
        assert judge(made, tmp_path / str(shift))["credentials"].outcome is Outcome.FAILED


@pytest.mark.parametrize(
    "change",
    [
        {"env": {"PIP_INDEX_URL": "https://ci:s3cretw0rd@mirror.corp.net/simple"}},
        {"env": {"HF_TOKEN": "0123456789"}},
        {"history": [{"created_by": "RUN pip install -i https://ci:s3cretw0rd@m.corp.net/ x"}]},
        {"labels": {"note": TOKEN}},
    ],
)
def test_a_credential_in_the_configuration_or_history_is_found(change, tmp_path):
    found = judge(python_image(**change), tmp_path)["credentials"]
    assert found.outcome is Outcome.FAILED
    assert "s3cretw0rd" not in found.summary + "".join(found.details)


def test_an_example_in_a_published_file_is_public(tmp_path):
    text = "EXAMPLE = 'https://someone:seven7seven@index.corp.net/'\n"
    made = python_image()
    made.layers.append(distribution("beta", "1", {"beta/__init__.py": text}))
    found = judge(made, tmp_path / "a")["credentials"]
    assert found.outcome is Outcome.PASSED
    assert "1 example" in found.summary
    made.layers.append([file(f"{SITE}/beta/__init__.py", text + "#\n")])
    assert judge(made, tmp_path / "b")["credentials"].outcome is Outcome.FAILED


# ── user, shell, driver, build paths ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("user", "outcome"),
    [
        ("10001:10001", Outcome.PASSED), ("qualify", Outcome.PASSED), ("", Outcome.FAILED),
        ("0", Outcome.FAILED), ("root:root", Outcome.FAILED), ("ghost", Outcome.UNKNOWN),
    ],
)  # fmt: skip
def test_root_is_refused_and_a_user_that_cannot_be_told_is_unknown(user, outcome, tmp_path):
    assert judge(python_image(user=user), tmp_path)["user"].outcome is outcome


def test_another_name_for_root_is_root(tmp_path):
    made = python_image(user="admin", more=[file("etc/passwd", "admin:x:0:0::/:\n")])
    assert judge(made, tmp_path)["user"].outcome is Outcome.FAILED


def test_an_engine_image_without_compiler_has_no_shell(tmp_path):
    engine = Runtime.model_validate(
        {"id": "e", "engine": "llama-cpp", "lock": None, "llama_cpp": {}}
    )
    ours = Expectations(image="llama-cpp-cpu", runtime=engine)
    assert judge(python_image(), tmp_path / "a", ours)["no-shell"].outcome is Outcome.PASSED
    shell = python_image(more=[file("usr/bin/dash", b"\x7fELF", 0o755), link("bin/sh", "dash")])
    found = judge(shell, tmp_path / "b", ours)["no-shell"]
    assert found.outcome is Outcome.FAILED
    vllm = Expectations(image="vllm-cpu", runtime=runtime())
    assert judge(shell, tmp_path / "c", vllm)["no-shell"].outcome is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize(
    "name", ["libcuda.so.1", "libcuda-40d19bb1.so", "libnvidia-ml.so.550.1", "nvidia-smi"]
)
def test_a_part_of_the_driver_is_found(name, tmp_path):
    found = judge(python_image(more=[file(f"usr/lib/{name}", b"")]), tmp_path)["no-driver"]
    assert found.outcome is Outcome.FAILED


def test_the_toolkit_s_own_libraries_and_stubs_are_no_driver(tmp_path):
    entries = [
        file("usr/local/cuda/lib64/stubs/libcuda.so", b""),
        file(f"{SITE}/nvidia/cu13/lib/libnvJitLink.so.13", b""),
        file(f"{SITE}/nvidia/nccl/lib/libnccl.so.2", b""),
        file(f"{SITE}/pynvvideocodec./libcuda-40d19bb1.so", b""),
    ]
    found = judge(python_image(more=entries), tmp_path)["no-driver"]
    assert found.outcome is Outcome.PASSED
    assert "allowed" in found.details[0]


STORE = b"/nix/store/" + b"0123456789abcdfg" * 2 + b"-python/bin"


def test_a_path_of_the_nix_store_is_found_in_our_images(tmp_path):
    ours = Expectations(image="runner")
    bad = python_image(more=[file("usr/bin/x", b"\0\1" + STORE, 0o755)])
    assert judge(bad, tmp_path / "a", ours)["no-build-paths"].outcome is Outcome.FAILED
    good = python_image(more=[file("usr/share/doc/x", "files lie in /nix/store/ of a machine")])
    assert judge(good, tmp_path / "b", ours)["no-build-paths"].outcome is Outcome.PASSED
    assert judge(bad, tmp_path / "c")["no-build-paths"].outcome is Outcome.NOT_APPLICABLE


# ── distributions ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (file(f"{SITE}/alpha/__init__.py", "VALUE = 2\n"), "1 changed"),
        (file(f"{SITE}/alpha/.wh.__init__.py"), "1 missing"),
        (file(f"{SITE}/alpha/extra.py", "x = 1\n"), "1 unlisted"),
        (file(f"{SITE}/sitecustomize.py", "x = 1\n"), "1 unlisted"),
        (file(f"{SITE}/zz.pth", "import os\n"), "1 unlisted"),
        (file(f"{SITE}/alpha/__pycache__/ghost.cpython-313.pyc", b"\0"), "1 unlisted"),
    ],
)
def test_a_changed_wheel_is_found(entry, said, tmp_path):
    found = judge(python_image(more=[entry]), tmp_path)["wheel-contents"]
    assert found.outcome is Outcome.FAILED
    assert said in found.summary


def test_a_record_that_was_published_wrong_is_allowed_by_digest(tmp_path, monkeypatch):
    import hashlib

    from qualify.images import distributions as module

    made = python_image(more=[file(f"{SITE}/alpha/__init__.py", "as published")])
    digest = hashlib.sha256(b"as published").hexdigest()
    monkeypatch.setattr(module, "allowed_files", lambda _: {digest: "its RECORD is wrong"})
    found = judge(made, tmp_path / "a")["wheel-contents"]
    assert found.outcome is Outcome.PASSED
    assert "its RECORD is wrong" in found.details[0]
    monkeypatch.setattr(module, "allowed_files", lambda _: {})
    assert judge(made, tmp_path / "b")["wheel-contents"].outcome is Outcome.FAILED


def test_bytecode_of_listed_sources_passes(tmp_path):
    entries = [
        file(f"{SITE}/alpha/__pycache__/__init__.cpython-313.pyc", b"\0"),
        file(f"{SITE}/alpha/__pycache__/__init__.cpython-313.opt-1.pyc", b"\0"),
    ]
    found = judge(python_image(more=entries), tmp_path)["wheel-contents"]
    assert found.outcome is Outcome.PASSED


def test_a_distribution_without_record_cannot_be_judged(tmp_path):
    made = python_image(more=[file(f"{SITE}/alpha-1.2.3.dist-info/.wh.RECORD")])
    assert judge(made, tmp_path)["wheel-contents"].outcome is Outcome.UNKNOWN


def test_what_a_package_carries_inside_is_not_installed(tmp_path):
    from qualify.images.distributions import distributions

    made = python_image(more=distribution("inner", "9", {}, site=f"{SITE}/alpha/_vendor"))
    tree = scan_image(open_image(made.layout(tmp_path / "i"))).tree
    assert [each.name for each in distributions(tree)] == ["alpha"]


# ── CUDA ─────────────────────────────────────────────────────────────────────────────────────────


def cuda_image(*, runtime_version="12.9.79", needed="libcudart.so.12", more=()):
    made = python_image()
    made.layers += [
        distribution("nvidia-cuda-runtime-cu12", runtime_version, {"nvidia/x.py": ""}),
        distribution("torch", "2.10.0", {"torch/version.py": "cuda: str = '12.8'\n"}),
        distribution("vllm", "0.19.1", {"vllm/_C.abi3.so": elf("libc.so.6", needed)}),
        list(more),
    ]
    return made


def test_one_cuda_major_passes_and_says_what_was_read(tmp_path):
    expected = Expectations(runtime=runtime(cuda="12.9"))
    found = judge(cuda_image(), tmp_path, expected)["cuda-major"]
    assert found.outcome is Outcome.PASSED
    assert "nothing was started" in found.summary
    assert any("12.8" in each for each in found.details)
    assert any("12.9.79" in each for each in found.details)
    assert any("_C.abi3.so asks for CUDA 12" in each for each in found.details)


def test_a_library_for_another_major_is_found(tmp_path):
    found = judge(cuda_image(needed="libcudart.so.13"), tmp_path)["cuda-major"]
    assert found.outcome is Outcome.FAILED
    assert "mixed" in found.summary


def test_packages_of_two_majors_are_found(tmp_path):
    other = distribution("nvidia-cuda-runtime", "13.0.96", {"nvidia/y.py": ""})
    found = judge(cuda_image(more=other), tmp_path)["cuda-major"]
    assert found.outcome is Outcome.FAILED
    assert "nvidia-cuda-runtime" in found.summary


def test_a_runtime_library_of_another_minor_is_found(tmp_path):
    expected = Expectations(runtime=runtime(cuda="12.9"))
    found = judge(cuda_image(runtime_version="12.8.90"), tmp_path, expected)["cuda-major"]
    assert found.outcome is Outcome.FAILED
    assert "12.8.90" in found.summary


def test_a_library_that_may_differ_is_allowed_with_its_reason(tmp_path):
    more = [file(f"{SITE}/torchvision/_C.so", elf("libcudart.so.13"))]
    found = judge(cuda_image(more=more), tmp_path)["cuda-major"]
    assert found.outcome is Outcome.PASSED
    assert any("torchvision" in each and "allowed" in each for each in found.details)


@pytest.mark.parametrize(
    "name", ["libcudart-c64a25f3.so.12.3.101", "libcudart.e8e8b82a.so.12", "libcudart.so.12"]
)
def test_a_library_that_a_wheel_carries_under_another_name_counts(name, tmp_path):
    path = f"{SITE}/codec/_x.so"
    made = cuda_image(
        needed="libcudart.so.13", runtime_version="13.0", more=[file(path, elf(name))]
    )
    made.layers[2] = distribution("nvidia-cuda-runtime", "13.0.96", {"nvidia/x.py": ""})
    assert judge(made, tmp_path / "a")["cuda-major"].outcome is Outcome.FAILED
    made.layers[-1] = [file(path.replace("codec", "PyNvVideoCodec"), elf(name))]
    found = judge(made, tmp_path / "b")["cuda-major"]
    assert found.outcome is Outcome.PASSED
    assert any("a video decoder" in each for each in found.details)


def test_the_profiler_that_triton_carries_may_be_of_another_major_and_nothing_beside_it(tmp_path):
    lib = f"{SITE}/triton/backends/nvidia/lib"
    more = [file(f"{lib}/cupti/libcupti.so.13", elf("libc.so.6"))]
    found = judge(cuda_image(more=more), tmp_path / "a")["cuda-major"]
    assert found.outcome is Outcome.PASSED
    assert any("Triton's profiler" in each for each in found.details)
    more = [file(f"{lib}/libcupti.so.13", elf("libc.so.6"))]
    assert judge(cuda_image(more=more), tmp_path / "b")["cuda-major"].outcome is Outcome.FAILED


def test_an_unreadable_library_is_unknown(tmp_path):
    broken = elf("libcudart.so.12")[:200]
    found = judge(cuda_image(more=[file("usr/lib/libx.so", broken)]), tmp_path)["cuda-major"]
    assert found.outcome is Outcome.UNKNOWN


TRITON = [
    file("usr/bin/gcc", b"\x7fELF", 0o755),
    file("usr/bin/as", b"\x7fELF", 0o755),
    file("usr/bin/ld", b"\x7fELF", 0o755),
    file("usr/sbin/ldconfig", b"\x7fELF", 0o755),
    link("sbin", "usr/sbin"),
    file("usr/include/python3.13/Python.h"),
    file("usr/include/stdio.h"),
]


def test_what_triton_needs_is_there(tmp_path):
    more = [*TRITON, *distribution("triton", "3", {"triton/x.py": ""})]
    expected = Expectations(runtime=runtime(cuda="12.9"))
    found = judge(cuda_image(more=more), tmp_path, expected)["triton-needs"]
    assert found.outcome is Outcome.PASSED


@pytest.mark.parametrize("lacking", ["gcc", "as", "ld", "ldconfig", "Python.h", "stdio.h"])
def test_a_cuda_image_without_its_compiler_is_refused(lacking, tmp_path):
    more = [each for each in TRITON if not each.path.endswith(f"/{lacking}")]
    more += distribution("triton", "3", {"triton/x.py": ""})
    expected = Expectations(runtime=runtime(cuda="12.9"))
    found = judge(cuda_image(more=more), tmp_path, expected)["triton-needs"]
    assert found.outcome is Outcome.FAILED


def test_an_engine_for_processors_needs_no_triton(tmp_path):
    found = judge(cuda_image(), tmp_path, Expectations(runtime=runtime()))["triton-needs"]
    assert found.outcome is Outcome.NOT_APPLICABLE


# ── tool parsers ─────────────────────────────────────────────────────────────────────────────────

REGISTRY = "_TOOL_PARSERS_TO_REGISTER = {'hermes': ('a', 'B'), 'qwen3_coder': ('c', 'D')}\n"
OLD = "@ToolParserManager.register_module(['hermes', 'qwen3_coder'])\nclass P: pass\n"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("vllm/tool_parsers/__init__.py", REGISTRY),
        ("vllm/tool_parsers/__init__.py", REGISTRY.replace(" =", ": dict[str, tuple] =")),
        ("vllm/entrypoints/openai/tool_parsers/x_tool_parser.py", OLD),
    ],
)
def test_declared_parsers_are_registered_in_every_layout(path, source, tmp_path):
    made = python_image(more=[file(f"{SITE}/{path}", source)])
    good = Expectations(runtime=runtime(tool_parsers=["hermes", "qwen3_coder"]))
    assert judge(made, tmp_path / "a", good)["tool-parsers"].outcome is Outcome.PASSED
    bad = Expectations(runtime=runtime(tool_parsers=["hermes", "deepseek_v3"]))
    found = judge(made, tmp_path / "b", bad)["tool-parsers"]
    assert found.outcome is Outcome.FAILED
    assert "deepseek_v3" in found.summary


def test_a_registry_that_is_no_python_is_unknown(tmp_path):
    made = python_image(more=[file(f"{SITE}/vllm/tool_parsers/__init__.py", "x = (")])
    expected = Expectations(runtime=runtime(tool_parsers=["hermes"]))
    assert judge(made, tmp_path, expected)["tool-parsers"].outcome is Outcome.UNKNOWN


# ── launcher, digests, environments ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, Outcome.PASSED),
        ({"entrypoint": ["python3", "-m", "alpha"]}, Outcome.PASSED),
        ({"entrypoint": ["/bin/python3", "-P", "-m", "alpha"]}, Outcome.PASSED),
        ({"entrypoint": []}, Outcome.NOT_APPLICABLE),
        ({"entrypoint": ["/usr/bin/gone"]}, Outcome.FAILED),
        ({"entrypoint": ["/etc/passwd"]}, Outcome.FAILED),
        ({"entrypoint": ["/usr/bin/python3", "-m", "gone"]}, Outcome.FAILED),
    ],
)
def test_what_the_image_starts_is_in_it(change, outcome, tmp_path):
    assert judge(python_image(**change), tmp_path)["launcher"].outcome is outcome


def test_a_blob_that_is_not_its_digest_is_found(tmp_path):
    made = python_image()
    layout = made.layout(tmp_path / "image")
    image = open_image(layout)
    blob = layout / image.layers[1].name
    data = bytearray(blob.read_bytes())
    data[4] ^= 1  # the time in the gzip header: the content stays the same
    blob.write_bytes(data)
    results = guard(Subject(scan_image(image, tolerant=True), Expectations(), image))
    found = {each.guard: each for each in results}["digests"]
    assert found.outcome is Outcome.FAILED
    assert "layer 2 has the digest" in found.summary


def test_an_image_that_cannot_be_read_to_the_end_passes_nothing(tmp_path):
    layout = python_image().layout(tmp_path / "image")
    image = open_image(layout)
    blob = layout / image.layers[0].name
    blob.write_bytes(blob.read_bytes()[:-20])
    results = guard(Subject(scan_image(image, tolerant=True), Expectations(), image))
    assert results[0].outcome is Outcome.FAILED
    assert {each.outcome for each in results[1:]} == {Outcome.UNKNOWN}
    assert not accepts(results)


def test_an_environment_in_a_folder_is_guarded_too(tmp_path):
    for entry in distribution(
        "alpha", "1.2.3", {"alpha/__init__.py": ""}, site="lib/site-packages"
    ):
        path = tmp_path / "env" / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(entry.data)

    def results():
        return {e.guard: e for e in guard(Subject(scan_folder(tmp_path / "env"), Expectations()))}

    assert accepts(tuple(results().values()))
    assert results()["wheel-contents"].outcome is Outcome.PASSED
    (tmp_path / "env/lib/site-packages/alpha/__init__.py").write_text("changed")
    (tmp_path / "env/model.bin").write_bytes(safetensors())
    assert results()["wheel-contents"].outcome is Outcome.FAILED
    assert results()["weights"].outcome is Outcome.FAILED


def test_no_guard_says_that_a_gpu_did_anything(tmp_path):
    results = judge(cuda_image(), tmp_path)
    text = json.dumps([(each.summary, each.details) for each in results.values()]).lower()
    assert not any(word in text for word in ("cuda started", "model loaded", "gpu works"))


# ── what must not pass ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("user", ["00", "000:10001"])
def test_root_written_with_more_zeros_is_root(user, tmp_path):
    assert judge(python_image(user=user), tmp_path)["user"].outcome is Outcome.FAILED


def test_a_listed_module_without_a_hash_is_vouched_for_by_nobody(tmp_path):
    entries = distribution("beta", "1", {"beta/__init__.py": ""})
    record = entries[-1]
    rows = record.data + b"evil.pth,,\n"
    entries[-1] = file(record.path, rows)
    found = judge(python_image(more=[*entries, file(f"{SITE}/evil.pth", "import os")]), tmp_path)
    assert found["wheel-contents"].outcome is Outcome.FAILED


def test_a_token_under_a_published_file_of_a_later_layer_is_found(tmp_path):
    made = python_image()
    token = "ghp_" + "a1" * 18
    made.layers[1:1] = [[file(f"{SITE}/alpha/__main__.py", f"t = '{token}'")]]
    found = judge(made, tmp_path)["credentials"]
    assert found.outcome is Outcome.FAILED
    assert "hidden by a later one" in found.summary
