"""Checks of a data set file that may come from a stranger: what it claims, before anything is read by it."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dtsn import __version__
from dtsn.arrays import Array
from dtsn.data.format import (
    BLOCK,
    CHUNK,
    FORMAT,
    FORMAT_VERSION,
    HEADER_FIELDS,
    MAX_ACTIONS,
    MAX_HEADER_BYTES,
    MAX_STEPS,
    OBSERVATION_DTYPES,
    PLAIN_ARRAYS,
    REMEDY,
    SEAL_BYTES,
    STEP_ARRAYS,
    DatasetError,
    ObservationSpec,
    check_values,
    seal,
    sealed,
    without_controls,
)
from dtsn.errors import brief
from dtsn.storage import parse_json

MAX_DEFLATE_RATIO = 1032  # gzip cannot expand by more
MAX_PLAIN_CHUNK = 2**16  # entries
CHUNK_OVERHEAD = 4096  # bytes
SPARE_BYTES = 2**23  # of a file, for its header and what HDF5 leaves unused


@contextmanager
def boundary(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a DatasetError that names it."""
    try:
        yield
    except DatasetError as error:
        if str(path) in str(error):
            raise
        raise DatasetError(f"{path}: {error}; {REMEDY}") from error
    except Exception as error:  # damaged files make HDF5 raise nearly anything
        raise DatasetError(f"{path}: cannot be read ({error}); {REMEDY}") from error


def signature(file: h5py.File) -> tuple[int, int]:
    """Return size and time of change of an open file: they differ once somebody writes to it."""
    status = os.fstat(file.id.get_vfd_handle())
    return status.st_size, status.st_mtime_ns


def read_header(path: Path, file: h5py.File) -> dict[str, Any]:
    """Read the header, with every field of the right kind and nothing that could steer a terminal."""
    texts = []
    for name in ("header", "header_sha256"):
        if name not in file.attrs:
            raise DatasetError(f"{path}: not a {FORMAT} file; give one that `DatasetWriter` wrote")
        attribute = file.attrs.get_id(name)
        if attribute.shape != () or attribute.dtype.kind != "S":
            raise DatasetError(f"{path}: {name} must be a text; {REMEDY}")
        if attribute.dtype.itemsize > MAX_HEADER_BYTES:
            size = attribute.dtype.itemsize
            raise DatasetError(
                f"{path}: {name} must take at most {MAX_HEADER_BYTES} bytes, got {size}; {REMEDY}"
            )
        texts.append(bytes(file.attrs[name]))
    header = parse_json(texts[0])
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DatasetError(f"{path}: not a {FORMAT} file; give one that `DatasetWriter` wrote")
    version = header.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise DatasetError(
            f"{path}: format version {brief(version)} cannot be read by dtsn {__version__}, which reads "
            f"version {FORMAT_VERSION}; upgrade dtsn or collect the data anew"
        )
    if hashlib.sha256(texts[0]).hexdigest().encode() != texts[1]:
        raise DatasetError(f"{path}: the header differs from its checksum; {REMEDY}")
    for field, kind in HEADER_FIELDS.items():
        if type(header.get(field)) is not kind:
            found = brief(header.get(field))
            raise DatasetError(
                f"{path}: header field {field} must be a {kind.__name__}, got {found}; {REMEDY}"
            )
    if not 1 <= header["num_actions"] <= MAX_ACTIONS:
        found = brief(header["num_actions"])
        raise DatasetError(f"{path}: num_actions must be 1 to {MAX_ACTIONS}, got {found}; {REMEDY}")
    if not 0 <= header["discount"] <= 1:
        raise DatasetError(f"{path}: discount must lie in [0, 1], got {header['discount']}; {REMEDY}")
    if not all(isinstance(digest, str) for digest in header["sha256"].values()):
        raise DatasetError(f"{path}: header field sha256 must map arrays to texts; {REMEDY}")
    cleaned: dict[str, Any] = without_controls(header)
    return cleaned


def open_arrays(path: Path, file: h5py.File) -> dict[str, Any]:
    """Open all arrays of the file, not read yet."""
    names = ["observations", *PLAIN_ARRAYS]
    if len(file) > len(names):
        strangers = [name for name, _ in zip(file, range(len(names) + 1), strict=False) if name not in names]
        raise DatasetError(f"{path}: must hold nothing besides its arrays, got {brief(strangers)}; {REMEDY}")
    arrays = {name: _open_array(path, file, name) for name in names}
    most = SPARE_BYTES + 4 * sum(_most_bytes(array) for array in arrays.values())
    if path.stat().st_size > most:  # a sparse file takes no room, but hours to be hashed
        raise DatasetError(f"{path}: must have at most {most} bytes for its arrays, got more; {REMEDY}")
    return arrays


def _most_bytes(array: Any) -> int:
    """Return what an array can take in a file, with what HDF5 keeps of each of its chunks."""
    chunks = -(-len(array) // array.chunks[0]) if array.chunks else 0
    return int(array.size * array.dtype.itemsize + chunks * CHUNK_OVERHEAD)


def _open_array(path: Path, file: h5py.File, name: str) -> Any:
    """Open one array, known to lie plainly in this file and to claim no more than the file can hold."""
    if file.get(name, getclass=True, getlink=True) is not h5py.HardLink:
        raise DatasetError(f"{path}: {name} is missing or a link to elsewhere; {REMEDY}")
    array = file[name]
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise DatasetError(f"{path}: {name} must be an array stored in this file; {REMEDY}")
    compressed = name == "observations"
    properties = array.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if filters != [h5py.h5z.FILTER_DEFLATE] * compressed:  # others may load foreign code
        raise DatasetError(f"{path}: {name} is stored with unknown filters {filters}; {REMEDY}")
    rank_fits = array.shape is not None and (len(array.shape) >= 1 if compressed else len(array.shape) == 1)
    allowed = OBSERVATION_DTYPES if compressed else (np.dtype(PLAIN_ARRAYS[name]).name,)
    if not rank_fits or array.dtype not in [np.dtype(kind).newbyteorder("<") for kind in allowed]:
        found = f"{array.dtype}{array.shape}"
        raise DatasetError(f"{path}: {name} must be {' or '.join(allowed)}, got {found}; {REMEDY}")
    claimed = max(math.prod(array.shape), math.prod(array.chunks or ())) * array.dtype.itemsize
    if claimed > path.stat().st_size * (MAX_DEFLATE_RATIO if compressed else 1):
        raise DatasetError(f"{path}: {name} claims {claimed} bytes, more than the file can hold; {REMEDY}")
    if not compressed and len(array) > MAX_STEPS:
        raise DatasetError(
            f"{path}: {name} must have at most {MAX_STEPS} entries, got {len(array)}; {REMEDY}"
        )
    if not compressed and array.chunks is not None and array.chunks[0] > MAX_PLAIN_CHUNK:
        raise DatasetError(
            f"{path}: {name} must be stored in chunks of at most {MAX_PLAIN_CHUNK} entries; {REMEDY}"
        )
    if compressed and array.chunks != (CHUNK, *array.shape[1:]):
        raise DatasetError(
            f"{path}: {name} must be stored in chunks of {CHUNK} frames, got {array.chunks}; {REMEDY}"
        )
    return array


def read_observation(path: Path, header: Mapping[str, Any], observations: Any) -> ObservationSpec:
    """Read what a frame looks like; larger ones than a file may have are refused."""
    spec = ObservationSpec.from_json(tuple(observations.shape[1:]), header["observation"])
    if spec.dtype != observations.dtype.name:
        raise DatasetError(
            f"{path}: observations must be {spec.dtype} by the header, got {observations.dtype}; {REMEDY}"
        )
    return spec


def check_contents(path: Path, num_actions: int, rows: int, arrays: Mapping[str, Array]) -> None:
    """Check that the arrays fit each other, for `rows` frames."""
    ends, steps = arrays["episode_ends"], len(arrays["actions"])
    lengths = {name: len(array) for name, array in arrays.items()}
    expected = {name: steps if name in STEP_ARRAYS else len(ends) for name in PLAIN_ARRAYS}
    if lengths != expected:
        raise DatasetError(f"{path}: arrays have lengths {lengths} that do not agree; {REMEDY}")
    if not len(ends) or ends[0] < 1 or (np.diff(ends) < 1).any() or ends[-1] != steps:
        raise DatasetError(f"{path}: episode_ends must rise from 1 to {steps}; {REMEDY}")
    if rows != steps + len(ends):
        raise DatasetError(
            f"{path}: observations must be {steps + len(ends)} for {steps} steps of {len(ends)} episodes, "
            f"got {rows}; {REMEDY}"
        )
    dones = arrays["dones"]
    if dones.max() > 1 or np.delete(dones, ends - 1).any():
        raise DatasetError(f"{path}: dones must be 0 or 1, and 0 within an episode; {REMEDY}")
    check_values(path, num_actions, *(arrays[name] for name in ("actions", "rewards", "q_values")))


def verify(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Compare every array, and the file as a whole, with its checksum."""
    for name, array in arrays.items():
        digest = hashlib.sha256()
        rows = BLOCK if name == "observations" else 2**16
        for row in range(0, len(array), rows):
            digest.update(np.ascontiguousarray(array[row : row + rows]).data)
        if sealed(digest, array) != header["sha256"].get(name):
            raise DatasetError(f"{path}: {name} differ from their checksum; {REMEDY}")
    with path.open("rb") as file:  # what no array covers, too: names, padding, spare room
        expected = seal(file).ljust(SEAL_BYTES, b"\0")
        if file.read(SEAL_BYTES) != expected:
            raise DatasetError(f"{path}: the file differs from its checksum; {REMEDY}")
