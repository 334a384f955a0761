"""Zip archives as libtorch reads them, written so that the same content gives the same bytes."""

import io
import zipfile
from pathlib import Path

# The earliest time that zip can hold; PyTorch writes none at all.
NO_TIME = (1980, 1, 1, 0, 0, 0)


def members(data: bytes) -> dict[str, bytes]:
    """Every member of an archive, in the order of its directory."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write(path: Path, content: dict[str, bytes], *, deflate: bool = True) -> None:
    """Writes an archive, deflated: zeros shrink a thousandfold, and libtorch loads it all the same."""
    path.write_bytes(build(content, deflate=deflate))


def build(content: dict[str, bytes], *, deflate: bool = True) -> bytes:
    buffer = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", method, compresslevel=9) as archive:
        for name, data in content.items():
            info = zipfile.ZipInfo(name, NO_TIME)
            info.compress_type = method
            archive.writestr(info, data, method, 9)
    return buffer.getvalue()


def rename_root(content: dict[str, bytes], root: str) -> dict[str, bytes]:
    """The same members under another top folder."""
    return {root + name[name.index("/") :]: data for name, data in content.items()}


def without_debug(content: dict[str, bytes]) -> dict[str, bytes]:
    """Without the source positions of TorchScript code: they name folders of the machine that wrote them."""
    return {name: data for name, data in content.items() if not name.endswith(".debug_pkl")}
