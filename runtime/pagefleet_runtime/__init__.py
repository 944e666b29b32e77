"""The paged inference server: one process speaks HTTP, one runs the engine. It knows no Kubernetes."""
