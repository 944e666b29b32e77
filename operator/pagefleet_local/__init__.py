"""The fleet on one machine: Kubernetes' own control plane and a process node."""
