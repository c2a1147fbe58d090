# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The settings of torch's caching allocator that decide where a block lands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vmm.errors import Invalid

KIB, MIB = 1 << 10, 1 << 20
MIN_BLOCK = 512
SMALL_LIMIT = MIB  # a request up to this size lives in a small segment
SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT_LIMIT = 10 * MIB  # from here on a request gets a segment of its own size
SEGMENT_GRANULE = 2 * MIB
UNLIMITED = 1 << 63

_ROUNDING = 20 * MIB  # by default an oversize block may be that much larger than its request
_INTERVALS = 16  # powers of two from 1 MiB; the last one is open
_FIRST_POWER = 20
# Keys of PYTORCH_CUDA_ALLOC_CONF that move no block on the device.
_IGNORED = frozenset(
    {
        "backend",
        "expandable_segments",
        "graph_capture_record_stream_reuse",
        "per_process_memory_fraction",
        "pinned_background_threads",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "throw_on_cudamalloc_oom",
    }
)


@dataclass(frozen=True)
class TorchSettings:
    """Sizes in bytes. ``roundup_divisions`` has one number for each power of two from 1 MiB on."""

    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = _ROUNDING
    large_segment_size: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    roundup_divisions: tuple[int, ...] = (0,) * _INTERVALS

    def round(self, size: int) -> int:
        """The size of the block that a request of `size` bytes is for."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        power = size.bit_length() - 1
        divisions = self.roundup_divisions[min(max(power - _FIRST_POWER, 0), _INTERVALS - 1)]
        if divisions > 1 and size > MIN_BLOCK * divisions:
            step = (1 << power) >> (divisions.bit_length() - 1)
            # More divisions than bytes: up to the next power of two, unless it is one.
            return -(-size // step) * step if step else 1 << (size - 1).bit_length()
        return -(-size // MIN_BLOCK) * MIN_BLOCK

    def segment_size(self, size: int) -> int:
        """The size of the segment that is asked from the driver for a block of `size` bytes."""
        if size <= SMALL_LIMIT:
            return SMALL_SEGMENT
        if size < OWN_SEGMENT_LIMIT:
            return self.large_segment_size
        return -(-size // SEGMENT_GRANULE) * SEGMENT_GRANULE

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_split_size_mb", self.max_split_size, self.large_segment_size),
            ("max_non_split_rounding_mb", self.max_non_split_rounding, self.large_segment_size),
            ("large_segment_size_mb", self.large_segment_size, OWN_SEGMENT_LIMIT + MIB),
        ):
            # torch compares what is set: the default stays where larger segments are asked for.
            is_default = name == "max_non_split_rounding_mb" and value == _ROUNDING
            if value < least and not is_default:
                raise Invalid(
                    f"the allocator setting {name} is {value // MIB}, but at least {least // MIB}"
                )
        if not 0 <= self.garbage_collection_threshold < 1:
            raise Invalid(
                "the allocator setting garbage_collection_threshold is"
                f" {self.garbage_collection_threshold}, not between 0 and 1"
            )

    @staticmethod
    def from_text(text: str, *, strict: bool = True) -> TorchSettings:
        """Reads the form of the environment variable, ``key:value,key:[a:1,b:2]``.

        Raises `Invalid` for a value that torch would refuse, and if `strict` for an unknown key.
        """
        values: dict[str, Any] = {}
        for name, value in _pairs(text):
            if name == "roundup_power2_divisions":
                values["roundup_divisions"] = _divisions(value)
            elif name in _MEGABYTES:
                values[_MEGABYTES[name]] = _number(name, value, int) * MIB
            elif name == "garbage_collection_threshold":
                values[name] = _number(name, value, float)
            elif strict and name not in _IGNORED:
                raise Invalid(f"{name!r} is no setting of torch's allocator that is known here")
        return TorchSettings(**values)

    @staticmethod
    def from_snapshot(settings: Mapping[Any, Any]) -> TorchSettings:
        """Reads ``allocator_settings`` of a snapshot, whatever else they hold. Raises `Invalid`."""
        text = settings.get("PYTORCH_CUDA_ALLOC_CONF", settings.get("PYTORCH_ALLOC_CONF"))
        known = TorchSettings.from_text(text if isinstance(text, str) else "", strict=False)
        split = settings.get("max_split_size")
        if isinstance(split, int):
            # "No limit" is the largest size_t, which a snapshot shows as -1.
            known = replace(known, max_split_size=split if 0 < split < 1 << 60 else UNLIMITED)
        threshold = settings.get("garbage_collection_threshold")
        if isinstance(threshold, int | float):
            known = replace(known, garbage_collection_threshold=float(threshold))
        table = settings.get("roundup_power2_divisions")
        if isinstance(table, Mapping) and table:
            try:
                pairs = sorted((int(key), int(value)) for key, value in table.items())
            except (TypeError, ValueError):
                raise Invalid("roundup_power2_divisions is no table of numbers") from None
            divisions = [0] * _INTERVALS
            for key, value in pairs:
                if key < 1:
                    raise Invalid(f"roundup_power2_divisions has the size {key} MiB")
                divisions[min(key.bit_length() - 1, _INTERVALS - 1)] = value
            known = replace(known, roundup_divisions=_checked(divisions))
        return known


_MEGABYTES = {
    "max_split_size_mb": "max_split_size",
    "max_non_split_rounding_mb": "max_non_split_rounding",
    "large_segment_size_mb": "large_segment_size",
}


def _pairs(text: str) -> list[tuple[str, str]]:
    """Splits at the commas that are outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        elif not letter.isspace():
            parts[-1] += letter
    pairs = []
    for part in filter(None, parts):
        name, colon, value = part.partition(":")
        if not colon or not value:
            raise Invalid(f"the allocator setting {part!r} is not of the form key:value")
        pairs.append((name, value))
    return pairs


def _number(name: str, text: str, kind: type[Any]) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not 0 < value < 1 << 40:
        raise Invalid(f"the allocator setting {name} is {text!r}, not a positive number")
    return value


def _divisions(text: str) -> tuple[int, ...]:
    if not text.startswith("["):
        return _checked([_number("roundup_power2_divisions", text, int)] * _INTERVALS)
    divisions, last = [0] * _INTERVALS, 0
    for number, (key, value) in enumerate(_pairs(text.strip("[]"))):
        count = _number("roundup_power2_divisions", value, int)
        if key == ">":
            divisions[last + 1 :] = [count] * (_INTERVALS - last - 1)
            continue
        size = _number("roundup_power2_divisions", key, int)
        last = min(size.bit_length() - 1, _INTERVALS - 1)
        if number == 0:
            divisions[:last] = [count] * last
        divisions[last] = count
    return _checked(divisions)


def _checked(divisions: list[int]) -> tuple[int, ...]:
    for value in divisions:
        if value < 0 or value & (value - 1):
            raise Invalid(f"roundup_power2_divisions has {value}, which is no power of two")
    return tuple(divisions)
