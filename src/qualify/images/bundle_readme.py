"""The page that the receiving person reads first: how to check a bundle and how to use it."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.images.bundle_format import BundledImage
from qualify.images.bundle_plan import BundlePlan

_PAGE = """\
# Offline bundle `{bundle}`

Container images with everything that says what they are: locks, manifests, corpora, documentation,
bills of materials and provenance. Nothing in here needs a network. Model weights are not part of
it; they are carried apart.

| image | digest of its manifest | serves the runtime | built from the revision |
|---|---|---|---|
{images}

Locks, manifests, corpora and documentation are those of the revision `{revision}`.

## Check it
With any Linux, in this folder:

    sha256sum --check --quiet SHA256SUMS

This finds files that are missing or changed, not files that were added. With `qualify`, which also
finds those, checks that the images are the ones that their bills and provenance speak of, and names
the first ten things that are wrong:

    qualify bundle verify .

Both show that the bundle is whole and of one mind. They cannot show who made it: nothing in it is
signed, and whoever changes a file can change the lists with it. The person who made it was told the
bundle's digest at the end (it is the SHA-256 of `bundle.json`). Ask them for it by another way than
the one the bundle came by, and give it along:

    qualify bundle verify . --digest sha256:…

## Use it
The folder `images` is an OCI layout that holds every image by its name. With skopeo and podman (or
`docker load`), for each NAME of the table:

    skopeo copy oci:images:NAME docker-archive:NAME.tar:localhost/qualify/NAME:{bundle}
    podman load --input NAME.tar
{runner}
With `qualify`, this folder is a project: `qualify --project . matrix` shows the rows, and
`qualify image guard images --ref NAME` judges an image without running it.
{rows}
`attestations/IMAGE/sbom.cdx.json` (CycloneDX 1.6) lists what an image holds,
`attestations/IMAGE/provenance.intoto.json` (SLSA v1, not signed) what it was built from.
{documentation}
To build the images again on a machine without a network, carry a depot (`qualify depot pack`): it
holds every pinned file by name and SHA-256.
"""


_RUNNER = """
The image `runner` brings the command `qualify`. It can also check this very bundle; a bundle that
somebody made up could bring a command that lies, so better use one that you have already:

    podman run --rm --network none --volume "$PWD":/bundle:ro \\
        localhost/qualify/runner:{bundle} bundle verify /bundle
"""


def readme_bytes(plan: BundlePlan, images: Sequence[BundledImage]) -> bytes:
    """The page for one bundle."""
    bundle = plan.bundle
    table = "\n".join(
        f"| `{image.name}` | `{image.digest}` | {f'`{image.runtime}`' if image.runtime else '–'} "
        f"| `{image.revision}` |"
        for image in images
    )
    names = {image.name for image in images}
    rows = ", ".join(f"`{row}`" for row in bundle.rows)
    page = _PAGE.format(
        bundle=bundle.id,
        images=table,
        revision=plan.project_files.revision,
        runner=_RUNNER.format(bundle=bundle.id) if names & {"runner"} else "",
        rows=f"\nRows of the matrix that it is meant for: {rows}.\n" if rows else "",
        documentation="`docs/reference/bundles.md` describes the form of bundles.\n"
        if "docs/reference/bundles.md" in plan.files
        else "",
    )
    return page.encode()
