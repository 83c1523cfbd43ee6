"""gRPC between the services: generated code, its translation to core values, servers and channels."""
