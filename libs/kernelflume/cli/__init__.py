"""The `kernelflume` command: starts the services by module name and speaks gRPC and HTTP to them."""

import os

# gRPC reads this only when it is first imported. At its own level it notes on standard error, in the midst of
# what a command shows, that a server went away; the commands say so themselves.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
