"""A connected machine without a depot: pinned files from the mirrors that nixpkgs lists.

nixpkgs is a stand-in here, and the mirror a server on loopback that serves the depot.
"""

import http.server
import threading

import pytest

from qualify.pins.depot import store_name
from support.nix import elsewhere, open_depot

PYTHON = "legacyPackages.x86_64-linux.parts.python"

pytestmark = [pytest.mark.builds, pytest.mark.slow, pytest.mark.timeout(300)]

MIRRORS = '{{ debian = [ "{root}/debian/" ]; pypi = [ "{root}/packages/source/" ]; }}\n'
PACKAGES = (
    '{ system }: { bash = "/none"; dpkg = "/none"; coreutils = "/none"; gnutar = "/none"; }\n'
)


@pytest.fixture
def mirror(depot):
    """A mirror on loopback; gives its address and the paths that were asked for."""
    asked = []

    class Mirror(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            name = store_name(self.path.rsplit("/", 1)[1])
            data = (depot / "files" / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def test_pinned_files_come_from_the_mirrors_of_nixpkgs(mirror, depot, tmp_path):
    root, asked = mirror
    fake = tmp_path / "nixpkgs"
    (fake / "pkgs/build-support/fetchurl").mkdir(parents=True)
    (fake / "flake.nix").write_text("{ outputs = _: { }; }\n")
    (fake / "default.nix").write_text(PACKAGES)
    (fake / "pkgs/build-support/fetchurl/mirrors.nix").write_text(MIRRORS.format(root=root))
    other = elsewhere(tmp_path / "other")
    busybox = open_depot(depot, tmp_path) / "busybox-elf"
    done = other.run("nix-store", "--add-fixed", "--recursive", "sha256", str(busybox))
    assert done.returncode == 0, done.stderr
    for output in ("python.nix-build", "debian.build"):
        done = other.run(
            "nix", "build", "--no-link", "--no-write-lock-file", "--override-input", "nixpkgs",
            f"path:{fake}", other.reference(f"legacyPackages.x86_64-linux.sources.{output}"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert any(path.startswith("/packages/py3/s/setuptools/setuptools-") for path in asked)
    assert any(path.startswith("/debian/pool/main/n/netbase/netbase_") for path in asked)
    done = other.run("nix", "eval", "--raw", other.reference(f"{PYTHON}.outPath"))
    built = other.built(PYTHON)
    assert str(built).endswith(done.stdout), "and the build needs nothing else"
