"""The store on a real file system: nothing is believed, nothing is half there."""

import os
import resource
import signal
import sys

import pytest
from tests.integration.models.conftest import forked, model_of

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.models import store as models
from qualify.models.errors import LicenceNotApproved, ModelAbsent, ModelFileMismatch
from qualify.models.layout import Layout, files_digest

pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded")

DATA = b"GGUF" + bytes(range(256)) * 4000


@pytest.fixture
def given(tmp_path):
    path = tmp_path / "given.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def tiny():
    return model_of({"tiny.gguf": DATA})


@pytest.fixture
def present(store, tiny, given):
    return models.acquire(tiny, source_file=given)


def blob_of(store, model):
    return Layout(store).blob(model.files[0])


def damage(path, data):
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_given_file_becomes_a_read_only_verified_snapshot(store, tiny, given):
    assert models.locate(tiny) is None
    snapshot = models.acquire(tiny, source_file=given)
    path = snapshot.path_of["tiny.gguf"]
    assert path.read_bytes() == DATA
    assert path.resolve() == blob_of(store, tiny)
    assert path.stat().st_mode & 0o777 == 0o444
    assert models.locate(tiny) == snapshot
    assert models.verify(tiny) == files_digest(tiny)
    assert list((store / "partial").iterdir()) == []


def test_the_given_file_stays_the_callers_own(present, given):
    given.write_bytes(b"changed afterwards")
    assert present.path_of["tiny.gguf"].read_bytes() == DATA


def test_the_store_can_be_moved(present, store, tiny, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    store.rename(elsewhere)
    assert models.verify(tiny, store=elsewhere) == files_digest(tiny)


def test_a_file_of_another_size_is_refused_with_both_sizes(store, tiny, given):
    given.write_bytes(DATA[:-1])
    with pytest.raises(ModelFileMismatch) as caught:
        models.acquire(tiny, source_file=given)
    error = caught.value
    assert (error.file, error.exit_code) == ("tiny.gguf", 10)
    assert (error.expected, error.found) == (f"{len(DATA)} bytes", f"{len(DATA) - 1} bytes")
    assert str(given) in str(error)
    assert models.locate(tiny) is None


def test_a_file_of_the_right_name_and_size_with_one_flipped_bit_is_refused(store, tiny, tmp_path):
    wrong = tmp_path / "tiny.gguf"
    wrong.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    with pytest.raises(ModelFileMismatch) as caught:
        models.acquire(tiny, source_file=wrong)
    assert caught.value.expected == f"sha256:{tiny.files[0].sha256}"
    assert caught.value.found.startswith("sha256:")
    assert caught.value.found != caught.value.expected
    assert models.locate(tiny) is None
    assert list((store / "blobs").iterdir()) == []


@pytest.mark.parametrize("make", ["missing", "folder", "fifo", "device"])
def test_what_is_no_regular_file_is_a_usage_error(store, tiny, tmp_path, make):
    path = tmp_path / "odd"
    if make == "folder":
        path.mkdir()
    elif make == "fifo":
        os.mkfifo(path)
    elif make == "device":
        path = type(path)("/dev/zero")
    with pytest.raises(UsageError):
        models.acquire(tiny, source_file=path)
    assert models.locate(tiny) is None


def test_a_truncated_file_in_the_store_is_found_by_verify_with_its_fix(present, store, tiny):
    damage(blob_of(store, tiny), DATA[:1000])
    assert models.state_of(tiny)[0] is models.StoreState.DAMAGED
    with pytest.raises(ModelFileMismatch) as caught:
        models.verify(tiny)
    assert (caught.value.expected, caught.value.found) == (f"{len(DATA)} bytes", "1000 bytes")
    assert "qualify model acquire tiny-model" in caught.value.fix


def test_a_changed_byte_in_the_store_is_found_by_verify(present, store, tiny):
    damage(blob_of(store, tiny), b"?" + DATA[1:])
    assert models.state_of(tiny)[0] is models.StoreState.PRESENT
    with pytest.raises(ModelFileMismatch, match="expected sha256:"):
        models.verify(tiny)


@pytest.mark.parametrize("wrong", [DATA[:1000], b"?" + DATA[1:], b""])
def test_a_damaged_file_is_replaced_by_acquire(present, store, tiny, given, wrong):
    damage(blob_of(store, tiny), wrong)
    models.acquire(tiny, source_file=given)
    assert models.verify(tiny) == files_digest(tiny)


def test_a_link_in_place_of_a_blob_is_not_trusted(present, store, tiny, given, tmp_path):
    blob = blob_of(store, tiny)
    blob.unlink()
    blob.symlink_to(given)
    assert models.locate(tiny) is None
    models.acquire(tiny, source_file=given)
    assert not blob.is_symlink()


def test_a_snapshot_link_to_another_file_is_repaired(present, store, tiny, given, tmp_path):
    link = present.path_of["tiny.gguf"]
    link.unlink()
    link.symlink_to(tmp_path / "elsewhere")
    assert models.locate(tiny) == present
    assert models.verify(tiny) == files_digest(tiny)


def test_two_models_with_one_file_share_it(present, store):
    other = model_of({"renamed.gguf": DATA}, name="other-model")
    assert models.verify(other) == files_digest(other)
    assert len(list((store / "blobs").iterdir())) == 1


def test_a_model_of_several_files_comes_from_a_folder(store, tmp_path):
    files = {"config.json": b"{}", "shards/one.bin": b"1" * 5000, "shards/two.bin": b"2" * 5000}
    model = model_of(files)
    folder = tmp_path / "snapshot"
    (folder / "shards").mkdir(parents=True)
    for path, data in files.items():
        (folder / path).write_bytes(data)
    snapshot = models.acquire(model, source_file=folder)
    assert {path: place.read_bytes() for path, place in snapshot.path_of.items()} == files
    with pytest.raises(UsageError, match="4 files"):
        models.acquire(model_of({**files, "new.bin": b"n"}), source_file=folder / "config.json")


def test_nothing_is_downloaded_in_an_offline_run(store, depot, tmp_path):
    model = depot.model()
    with pytest.raises(ModelAbsent, match="offline"):
        models.acquire(model, offline=True)
    assert not store.exists()
    given = tmp_path / "given"
    given.write_bytes(depot.data)
    models.acquire(model, offline=True, source_file=given)
    assert models.acquire(model, offline=True) == models.locate(model)


def test_a_model_without_files_or_sources_says_what_to_do(store, tiny):
    with pytest.raises(ModelAbsent, match="lists no files"):
        models.acquire(model_of({}))
    with pytest.raises(ModelAbsent, match="--from FILE"):
        models.acquire(tiny)
    with pytest.raises(ModelAbsent, match="qualify model acquire tiny-model"):
        models.verify(tiny)


def test_a_licence_that_needs_approval_is_approved_once_by_its_name(store, given):
    model = model_of({"tiny.gguf": DATA}, licence="LicenseRef-Terms", approval="explicit")
    with pytest.raises(LicenceNotApproved, match="--approve-licence LicenseRef-Terms"):
        models.acquire(model, source_file=given)
    with pytest.raises(UsageError, match="is LicenseRef-Terms, not Apache"):
        models.acquire(model, source_file=given, approve_licence="Apache-2.0")
    assert not store.exists()
    models.acquire(model, source_file=given, approve_licence="LicenseRef-Terms")
    assert models.acquire(model) == models.locate(model)
    record = (store / "licences" / "tiny-model.json").read_text()
    assert '"spdx":"LicenseRef-Terms"' in record
    assert '"approved_at":"20' in record


def test_an_approval_of_another_licence_or_a_damaged_one_counts_for_nothing(store, given):
    model = model_of({"tiny.gguf": DATA}, licence="LicenseRef-Terms", approval="explicit")
    models.acquire(model, source_file=given, approve_licence="LicenseRef-Terms")
    changed = model_of({"tiny.gguf": DATA}, licence="LicenseRef-Terms-2", approval="explicit")
    assert models.locate(changed) is None
    (store / "licences" / "tiny-model.json").write_text("{")
    assert models.locate(model) is None
    assert models.state_of(model)[0] is models.StoreState.UNAPPROVED


def test_a_read_only_store_serves_what_it_has_and_refuses_the_rest(
    present, store, tiny, given, with_mounts
):
    mounts = [
        ["mount", "--bind", str(store), str(store)],
        ["mount", "-o", "remount,bind,ro", str(store)],
    ]
    status, text = with_mounts(mounts, lambda: (models.acquire(tiny), models.verify(tiny))[1])
    assert (status, text) == (0, files_digest(tiny))
    given.write_bytes(DATA[::-1])
    other = model_of({"other.gguf": DATA[::-1]}, name="other-model")

    def refused():
        with pytest.raises(EnvironmentFault, match="read-only") as caught:
            models.acquire(other, source_file=given)
        return caught.value

    status, text = with_mounts(mounts, refused)
    assert status == 0, text
    assert "QUALIFY_MODEL_STORE" in text


def test_too_little_space_is_said_before_anything_is_copied(store, tiny, given, with_mounts):
    store.mkdir()
    mounts = [["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(store)]]

    def refused():
        with pytest.raises(EnvironmentFault, match=r"needs .* MB, has .* free") as caught:
            models.acquire(tiny, source_file=given)
        assert models.locate(tiny) is None
        return caught.value

    status, text = with_mounts(mounts, refused)
    assert status == 0, text


def test_a_disk_that_fills_up_meanwhile_leaves_no_blob(
    store, tiny, given, with_mounts, monkeypatch
):
    store.mkdir()
    monkeypatch.setattr(models, "_SPARE_BYTES", -len(DATA))
    mounts = [["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(store)]]

    def refused():
        with pytest.raises(EnvironmentFault, match="disk filled up"):
            models.acquire(tiny, source_file=given)
        return list((store / "blobs").iterdir()), models.locate(tiny)

    assert with_mounts(mounts, refused) == (0, "([], None)")


def test_killed_at_every_file_operation_the_store_holds_all_or_nothing(store, tiny, given):
    survived = 0
    for moment in range(1, 400):

        def doomed(moment=moment):
            left = moment

            def hook(event, _arguments):
                nonlocal left
                if event.split(".")[0] in ("open", "os", "shutil", "tempfile", "fcntl"):
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            models.acquire(tiny, source_file=given)

        status, text = forked(doomed)
        found = models.locate(tiny)
        assert found is None or models.verify(tiny) == files_digest(tiny)
        if status == 0:
            survived += 1
            break
        assert status == -signal.SIGKILL, text
        models.acquire(tiny, source_file=given)
        assert models.verify(tiny) == files_digest(tiny)
        for path in sorted(store.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        store.rmdir()
    assert survived
    assert moment > 20


def test_memory_stays_flat_whatever_the_size_of_a_file(store, tmp_path):
    big = tmp_path / "big"
    with big.open("wb") as stream:
        for _ in range(200):
            stream.write(DATA[: 1 << 20])
    digest = models.digest_file(big)
    model = model_of({"big.gguf": b""}).model_copy(
        update={
            "files": (
                model_of({"big.gguf": b""})
                .files[0]
                .model_copy(
                    update={"size": big.stat().st_size, "sha256": digest.removeprefix("sha256:")}
                ),
            )
        }
    )

    def growth():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        models.acquire(model, source_file=big)
        models.verify(model)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    status, text = forked(growth)
    assert status == 0, text
    assert int(text) < 32 * 1024
