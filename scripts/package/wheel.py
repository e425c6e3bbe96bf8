"""Makes a wheel that puts libnccl.so.2 and nccl.h where the wheel nvidia-nccl-cu13 has them: below nvidia/nccl/.

    wheel.py VERSION GLIBC TREE OUT

TREE has lib/ and include/. Installed after nvidia-nccl-cu13 it takes the place of its file.
"""
import base64
import hashlib
import os
import sys
import zipfile

version, glibc, tree, out = sys.argv[1:]
tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_x86_64"
info = f"oxccl-{version}.dist-info"


def read(*path):
    with open(os.path.join(tree, *path), "rb") as file:
        return file.read()


metadata = f"""Metadata-Version: 2.1
Name: oxccl
Version: {version}
Summary: Collective communication for GPUs: a drop-in replacement for libnccl.so.2
License: MIT OR Apache-2.0
Requires-Python: >=3.8
"""
files = {
    "nvidia/nccl/lib/libnccl.so.2": read("lib", "libnccl.so.2"),
    "nvidia/nccl/include/nccl.h": read("include", "nccl.h"),
    f"{info}/METADATA": metadata.encode(),
    f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: oxccl\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    f"{info}/licenses/LICENSE-MIT": read("share", "doc", "oxccl", "LICENSE-MIT"),
    f"{info}/licenses/LICENSE-APACHE": read("share", "doc", "oxccl", "LICENSE-APACHE"),
}
record = "".join(
    f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
    for name, data in files.items()
)
files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
with zipfile.ZipFile(os.path.join(out, f"oxccl-{version}-{tag}.whl"), "w", zipfile.ZIP_DEFLATED) as wheel:
    for name, data in files.items():
        # A fixed time, so that the same input gives the same wheel.
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o755 if name.endswith(".so.2") else 0o644) << 16
        wheel.writestr(entry, data)
