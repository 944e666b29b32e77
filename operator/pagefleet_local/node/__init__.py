"""The process node: registers a Node and runs the pods bound to it as processes of this Python environment.

It has the rights of a kubelet (`system:node:NAME`) and no more. What a pod asks is worked out in pure modules
(`process_spec`, `volumes`, `probes`, `restarts`, `status`, `endpoints`); the others act. It isolates nothing.
"""
