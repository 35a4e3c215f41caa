"""The guards (capability B3): what can be said of an image without a GPU and without running it.

Each guard is a function from a `Subject` to one `GuardResult`. Nothing here starts anything, so no
guard may say that CUDA started or that a model loads. A guard that cannot judge says `unknown`,
which is no pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qualify.images.errors import ImageFault
from qualify.images.guards import bytecode, packages, preloads, project, source, surface
from qualify.images.guards.result import GuardResult, Outcome, Subject, unknown

__all__ = ["GUARDS", "Guard", "GuardResult", "Outcome", "Subject", "accepts", "guard"]


@dataclass(frozen=True)
class Guard:
    """A guard, what it asks, and whether it needs the layers to have been read to the end."""

    name: str
    judge: Callable[[Subject], GuardResult]
    reads_layers: bool = True

    @property
    def question(self) -> str:
        """What it holds an image to, in one sentence."""
        return (self.judge.__doc__ or "").split("\n\n")[0].strip()


GUARDS: tuple[Guard, ...] = (
    Guard("digests", project.digests, reads_layers=False),
    Guard("versions", packages.versions),
    Guard("wheel-contents", packages.wheel_contents),
    Guard("cuda-major", packages.cuda_major),
    Guard("tool-parsers", packages.tool_parsers),
    Guard("launcher", project.launcher),
    Guard("declarations", project.declarations),
    Guard("source", source.source),
    Guard("bytecode", bytecode.bytecode),
    Guard("preloads", preloads.preloads),
    Guard("weights", surface.weights),
    Guard("writable", surface.writable),
    Guard("credentials", surface.credentials),
    Guard("user", surface.user),
    Guard("no-shell", surface.no_shell),
    Guard("triton-needs", project.triton_needs),
    Guard("no-driver", surface.no_driver),
    Guard("no-build-paths", surface.no_build_paths),
    Guard("no-claims", project.no_claims),
)


def guard(subject: Subject) -> tuple[GuardResult, ...]:
    """Every guard's answer, in order."""
    broken = subject.scan.broken
    results = []
    for each in GUARDS:
        if broken is not None and each.reads_layers:
            results.append(unknown(each.name, f"the layers could not be read: {broken}"))
        else:
            results.append(_judged(each, subject))
    return tuple(results)


def _judged(each: Guard, subject: Subject) -> GuardResult:
    try:
        return each.judge(subject)
    except ImageFault as error:  # links without end, a damaged index
        return unknown(each.name, f"it could not be judged: {error.what}")


def accepts(results: tuple[GuardResult, ...]) -> bool:
    """Whether no guard objects: each passed, or has nothing to say."""
    return all(each.outcome in (Outcome.PASSED, Outcome.NOT_APPLICABLE) for each in results)
