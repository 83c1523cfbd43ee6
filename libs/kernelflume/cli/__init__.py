"""The `kernelflume` command: starts the services by module name and speaks gRPC and HTTP to them."""
