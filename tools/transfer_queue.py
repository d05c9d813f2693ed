"""An environment with TransferQueue and PyTorch, for tests and benchmarks that need them.

    python -m tools.transfer_queue            makes it, says where its interpreter is

It lies in ``build/transfer-queue`` and takes the packages of this interpreter's environment but for
those named here: half a minute and 1.2 GB. The only PyTorch for x86-64 on PyPI is built for CUDA
and wants 4 GB of NVIDIA's libraries to be loaded; on a machine without a GPU none of them is ever
called, so the big ones are empty libraries here, and symbols are looked up when they are called.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tools.interop import ToolMissing
from tools.window import pip

ROOT = Path(__file__).resolve().parents[1]
DIRECTORY = ROOT / "build" / "transfer-queue"
PACKAGES = (
    "TransferQueue==0.1.11",
    "torch==2.15.0",
    "tensordict==0.15.3",
    "pyvers==0.2.3",
    "cloudpickle==3.1.3",
    "pyzmq==27.3.0",
    "hydra-core==1.3.8",
    "omegaconf==2.3.1",
    "antlr4-python3-runtime==4.9.3",
    "sympy==1.14.0",
    "mpmath==1.3.0",
    "networkx==3.6.1",
    "fsspec",
    "filelock",
    "jinja2",
    "markupsafe",
    "psutil",
)
CUDA = ("nvidia-cuda-runtime==13.2.86", "nvidia-cuda-cupti==13.2.86", "nvidia-cufile==1.17.1.22")
"""The small ones, as this PyTorch wants them."""
EMPTY = (
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
)
NVSHMEM = "libnvshmem_host.so.3"
NVSHMEM_SOURCE = """
long nvshmem_selected_device_transport, nvshmemi_device_only_state;
void nvshmem_init(void) {}
void nvshmemi_get_device_state_ptrs(void) {}
"""
"""Of this one addresses are taken when it is loaded."""
LAZY = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"


def python() -> Path:
    """The interpreter of the environment, which is made where it is not there. ``ToolMissing``
    where that cannot be.
    """
    made_of = [*PACKAGES, *CUDA, *EMPTY, NVSHMEM_SOURCE, LAZY, sys.executable]
    stamp = hashlib.sha256("\n".join(made_of).encode()).hexdigest()
    found, stamped = DIRECTORY / "bin" / "python", DIRECTORY / "made.sha256"
    DIRECTORY.parent.mkdir(parents=True, exist_ok=True)
    with DIRECTORY.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamped.exists() and stamped.read_text() == stamp):
            shutil.rmtree(DIRECTORY, ignore_errors=True)
            _make(found)
            stamped.write_text(stamp)
    return found


def variables() -> dict[str, str]:
    """The environment of its programs: they find this project, and compile PyTorch once."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(DIRECTORY / "pycache")}


def _make(interpreter: Path) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(DIRECTORY)])
    cuda = CUDA if platform.machine() == "x86_64" else ()
    install = ["install", "--quiet", "--no-compile", "--no-deps", *PACKAGES, *cuda]
    _run([*pip(interpreter), *install])
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(_run([str(interpreter), "-c", asked]).strip())
    (own / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    if cuda:
        (own / "lazy.pth").write_text(LAZY)
        for name in EMPTY:
            _library(own / "torch" / "lib", name, "", "")
        _library(own / "torch" / "lib", NVSHMEM, NVSHMEM_SOURCE, "NVSHMEM { global: *; };")
    _run([str(interpreter), "-c", "import torch, tensordict; torch.ones(2) @ torch.ones(2)"])


def _library(directory: Path, name: str, source: str, versions: str) -> None:
    """A shared library of this C; ``versions``: a linker's version script."""
    command = ["cc", "-shared", "-nostdlib", "-x", "c", "-", f"-Wl,-soname,{name}"]
    if versions:
        script = directory / f"{name}.map"
        script.write_text(versions)
        command.append(f"-Wl,--version-script={script}")
    _run([*command, "-o", str(directory / name)], source)


def _run(command: Sequence[str], given: str = "") -> str:
    if shutil.which(command[0]) is None:
        raise ToolMissing(f"there is no {command[0]} here, which makes PyTorch's environment")
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=variables(),
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ToolMissing(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    print(python())
