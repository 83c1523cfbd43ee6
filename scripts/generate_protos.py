"""Generate the gRPC code from proto/ into libs/; with --check only compare with what is committed."""

from __future__ import annotations

import filecmp
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "libs"


def generate(target: Path) -> list[Path]:
    """Generate all modules below ``target`` and return their paths relative to it."""
    protos = sorted((ROOT / "proto").rglob("*.proto"))
    arguments = [
        "protoc",
        f"-I{ROOT / 'proto'}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"--grpc_python_out={target}",
        *map(str, protos),
    ]
    if protoc.main(arguments):
        raise SystemExit("protoc failed")
    stems = [path.relative_to(ROOT / "proto").with_suffix("") for path in protos]
    return [
        stem.with_name(stem.name + ending)
        for stem in stems
        for ending in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
    ]


def main() -> None:
    """Write the generated modules, or fail if the committed ones differ."""
    if "--check" not in sys.argv:
        generate(TARGET)
        return
    with tempfile.TemporaryDirectory() as folder:
        stale = [
            str(path)
            for path in generate(Path(folder))
            if not (TARGET / path).is_file()
            or not filecmp.cmp(TARGET / path, Path(folder) / path, shallow=False)
        ]
    if stale:
        raise SystemExit(f"not as generated, run `make proto`: {', '.join(stale)}")


if __name__ == "__main__":
    main()
