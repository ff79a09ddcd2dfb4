"""What a projection has to know of a device, and some that are known."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from pipeline.common.json_file import read_json
from pipeline.errors import UserError, shown, suggest

DtypeName = Literal["float16", "bfloat16", "float32"]
DTYPES: tuple[DtypeName, ...] = get_args(DtypeName)
ITEM_BYTES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4}
CPU = "cpu"  # names this machine, which is predicted from its measured curve

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class Device:
    """A device as its data sheet has it, and how far that is reached.

    peak: operations a second by dtype, of dense matrices with float32 sums. bandwidth: bytes a second. memory: bytes.
    launch_seconds: added for each kernel that a pass launches, see `Roofline`. What is published of launches lies at 4
        to 6 microseconds each (20 where Python is slow to ask for them, less where a CUDA graph holds all of a pass).
    bandwidth_efficiency: by default what gpt-fast's README states for decoding Llama-2-7B in bfloat16 on an A100-80GB:
        1397 of 2039 GB/s.
    peak_efficiency: by default somewhat less than the 75% that FlashAttention-3 is published to reach in float16 on an
        H100. Neither is fitted to anything of ours.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    peak: Annotated[dict[DtypeName, Amount], Field(min_length=1)]
    bandwidth: Amount
    memory: Amount
    launch_seconds: Annotated[float, Field(ge=0, le=1)] = 5e-6
    bandwidth_efficiency: Share = 0.69
    peak_efficiency: Share = 0.7

    def peak_of(self, dtype: str) -> float:
        """Operations a second.

        Raises:
            UserError: the device is not described for this dtype.
        """
        found = {str(name): value for name, value in self.peak.items()}
        if dtype not in found:
            raise UserError(f"{self.name}: no peak for {dtype}; described are {', '.join(found)}")
        return found[dtype]


def _nvidia(name: str, half: float, single: float, bandwidth: float, gigabytes: float) -> Device:
    return Device(name, {"float16": half, "bfloat16": half, "float32": single}, bandwidth, gigabytes * 1e9)


# NVIDIA's data sheets, without sparsity; float32 without tensor cores, as PyTorch computes it unless told otherwise.
# The half-precision peak of an RTX 4090 is that with float32 sums, half of what is advertised for float16 sums.
DEVICES: dict[str, Device] = {
    "a100": _nvidia("A100-80GB SXM", 312e12, 19.5e12, 2.039e12, 80),
    "h100": _nvidia("H100 SXM", 989e12, 67e12, 3.35e12, 80),
    "h200": _nvidia("H200 SXM", 989e12, 67e12, 4.8e12, 141),
    "rtx4090": _nvidia("RTX 4090", 165.2e12, 82.6e12, 1.008e12, 24),
}


def device_named(name: str) -> Device:
    """A known device, or one that a JSON file describes with the fields of `Device`.

    Raises:
        UserError: no such device, or the file is none.
    """
    if not name.endswith(".json"):
        if name not in DEVICES:
            raise UserError(f"--device: found {shown(name)}, no .json file{suggest(name, [*DEVICES, CPU])}")
        return DEVICES[name]
    file = read_json(Path(name))
    try:
        return Device(**file.data)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in detail["loc"] if part != "[key]")
        said = detail["msg"].removeprefix("Input ")
        known = [*Device.__dataclass_fields__]
        if detail["type"] == "unexpected_keyword_argument":
            raise UserError(f"{file.path}: {place}: unknown key{suggest(place, known)}") from None
        if detail["type"] == "missing":
            raise UserError(f"{file.path}: {place}: missing; this key is required") from None
        raise UserError(f"{file.path}: {place}: found {shown(detail['input'])}; {said}") from None


def with_free_launches(device: Device) -> Device:
    """The same device if launching took no time: the other end of what its speedups may be."""
    return replace(device, launch_seconds=0.0)
