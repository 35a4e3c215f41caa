"""Public test vectors through our own verifier and canonicaliser: `./test vectors DIR`.

DIR holds any of these; the project ships none of them:

- `ed25519/*.json`: Wycheproof's Ed25519 verification cases (testvectors_v1);
- `rfc8785/input/*.json` and `rfc8785/output/*.json`: pairs of the JSON Canonicalization Scheme;
- `sigstore-bundles/CASE/bundle.sigstore.json`: cases in the form of sigstore-conformance, where a
  name that ends in `_fail` must be refused. Artifact, identity, issuer and trust root are files of
  the case (`artifact` or `a.txt`, `identity`, `issuer`, `trusted_root.json`), else the defaults.

Every case that is not as expected is printed. Exit 1 when there is one, or when nothing was found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from qualify.core.canonical import NotCanonical, canonicalize
from qualify.evidence.signing.keys import PublicKey
from qualify.evidence.signing.sigstore import Identity, NotABundle, verify_bundle

IDENTITY = (
    "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon/"
    ".github/workflows/extremely-dangerous-oidc-beacon.yml@refs/heads/main"
)
ISSUER = "https://token.actions.githubusercontent.com"
type Outcome = tuple[str, bool, str]
"""(case, whether it is as expected, what came out)."""


def ed25519(folder: Path) -> Iterator[Outcome]:
    for path in sorted((folder / "ed25519").glob("*.json")):
        for group in json.loads(path.read_text("utf-8"))["testGroups"]:
            key = PublicKey(bytes.fromhex(group["publicKey"]["pk"]))
            for case in group["tests"]:
                message, signature = bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
                accepted = key.verifies(signature, message)
                expected = case["result"] == "valid"
                yield f"{path.name} {case['tcId']}", accepted == expected, str(accepted)


def rfc8785(folder: Path) -> Iterator[Outcome]:
    for path in sorted((folder / "rfc8785" / "input").glob("*.json")):
        expected = (folder / "rfc8785" / "output" / path.name).read_bytes()
        try:
            found = canonicalize(path.read_bytes())
        except NotCanonical as error:
            yield path.name, False, str(error)
        else:
            yield path.name, found == expected.removesuffix(b"\n"), ascii(found[:80])


def sigstore(folder: Path) -> Iterator[Outcome]:
    place = folder / "sigstore-bundles"
    for path in sorted(place.glob("*/bundle.sigstore.json")):
        case = path.parent
        artifact = next(
            each for each in (case / "artifact", case / "a.txt", place / "a.txt") if each.exists()
        )
        root = case / "trusted_root.json"
        signer = Identity(
            _text(case / "identity", IDENTITY),
            _text(case / "issuer", ISSUER),
            root if root.exists() else None,
        )
        try:
            verify_bundle(path.read_bytes(), artifact.read_bytes(), signer)
            refused = ""
        except NotABundle as error:
            refused = str(error)
        yield case.name, bool(refused) == case.name.endswith("_fail"), refused or "accepted"


def _text(path: Path, default: str) -> str:
    return path.read_text("utf-8").strip() if path.exists() else default


def main(folder: Path) -> int:
    good = True
    for name, kind in (("Ed25519", ed25519), ("RFC 8785", rfc8785), ("Sigstore", sigstore)):
        outcomes = list(kind(folder))
        wrong = [each for each in outcomes if not each[1]]
        print(f"{name:<10} {len(outcomes)} cases, {len(wrong)} not as expected")
        for case, _, what in wrong:
            print(f"  {case}: {what}")
        good = good and bool(outcomes) and not wrong
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
