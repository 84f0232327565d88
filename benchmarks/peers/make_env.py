"""Makes an environment for each tool, with pinned versions, in DIR/TOOL; an existing one is left as it is.

    python make_env.py pfllib fluke [--source PFLLIB=/path/of/a/clone] [--envs DIR]

A tool that is no package is a checkout of one commit, from its public URL or from the clone that --source names, in
DIR/TOOL/source. pflbench needs no environment: its adapters run with the interpreter of compare.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ENVS = Path(__file__).parent / "envs"
TORCH = ("torch==2.13.0", "torchvision==0.28.0", "numpy==2.4.6")


@dataclass(frozen=True)
class Tool:
    """packages: pip's requirements. url, commit, paths: of a checkout, with the paths in it that are needed."""

    packages: tuple[str, ...]
    version: str
    url: str = ""
    commit: str = ""
    paths: tuple[str, ...] = ()


TOOLS = {
    "pfllib": Tool(
        (*TORCH, "h5py==3.16.0", "scikit-learn==1.9.1", "matplotlib==3.11.2", "cvxpy==1.9.3"),
        "d832e76, 2025-11-29",
        "https://github.com/TsingZ0/PFLlib",
        "d832e76f6a23b833038949ec1e4fdefe63a4d350",
        ("system",),
    ),
    "fluke": Tool((*TORCH, "fluke-fl==0.8.1"), "0.8.1"),
    "flbench": Tool(
        (
            *TORCH,
            "hydra-core==1.3.8",
            "ray==2.60.0",
            "rich",
            "pandas",
            "scikit-learn==1.9.1",
            "nvidia-ml-py",
            "pillow",
            "matplotlib==3.11.2",
        ),
        "06e658b, 2025-10-09",
        "https://github.com/KarhouTam/FL-bench",
        "06e658bca5af6ce732e25bb7c0f8be321e14a85e",
        ("src", "config", "data/utils", "main.py"),
    ),
    "flower": Tool((TORCH[0], "numpy==2.4.6", "flwr[simulation]==1.29.0"), "1.29.0"),
    "flgo": Tool((TORCH[0], "numpy==2.4.6", "flgo==0.4.4"), "0.4.4"),
    "pfl": Tool((TORCH[0], "numpy==2.4.6", "pfl==0.6.0"), "0.6.0"),
}


def check_out(tool: Tool, source: str, folder: Path) -> None:
    """The commit's paths in a folder. A clone whose other files are incomplete will do."""
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", source, str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", tool.commit, "--", *tool.paths], check=True)


def make(name: str, envs: Path, source: str | None) -> None:
    """Makes the environment; what is there of an attempt that failed is removed first."""
    tool, folder = TOOLS[name], envs / name
    if (folder / "made.json").exists():
        print(f"{name}: {folder} is there already")
        return
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *tool.packages], check=True)
    made = {"tool": name, "version": tool.version, "packages": tool.packages}
    if tool.commit:
        check_out(tool, source or tool.url, folder / "source")
        made |= {"commit": tool.commit, "source": str((folder / "source").resolve())}
    (folder / "made.json").write_text(json.dumps(made, indent=1))
    print(f"{name}: {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="+", choices=TOOLS)
    parser.add_argument("--envs", type=Path, default=ENVS)
    parser.add_argument("--source", action="append", default=[], metavar="TOOL=PATH", help="a local clone, in any case of TOOL")
    options = parser.parse_args()
    sources = {name.lower(): path for name, _, path in (text.partition("=") for text in options.source)}
    for name in options.tools:
        make(name, options.envs.resolve(), sources.get(name))


if __name__ == "__main__":
    main()
