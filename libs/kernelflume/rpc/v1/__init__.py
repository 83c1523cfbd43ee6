"""Generated from proto/kernelflume/rpc/v1 by scripts/generate_protos.py."""
