"""The environment by which the end-to-end suite is told of a cluster that is there: tests/cluster/bed.py sets it."""

KUBECONFIG = "PAGEFLEET_E2E_KUBECONFIG"
# What the cluster's nodes hold, by the chart's name for it; the chart's defaults where absent.
IMAGES = {"light": "PAGEFLEET_E2E_LIGHT_IMAGE", "engine": "PAGEFLEET_E2E_ENGINE_IMAGE"}
# A folder of the only node that anybody may write to: a hostPath volume below it serves a claim.
VOLUMES = "PAGEFLEET_E2E_VOLUMES"
