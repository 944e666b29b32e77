"""Names that programs, manifests and documents share: ports, paths, headers, environment, load stages."""

HTTP_PORT = 8000

PATH_METRICS = "/metrics"
PATH_LIVE = "/health/live"
PATH_READY = "/health/ready"
PATH_STATE = "/pagefleet/v1/state"
PATH_POLICY = "/pagefleet/v1/policy"
PATH_DRAIN = "/pagefleet/v1/drain"

HEADER_REQUEST_ID = "x-request-id"
HEADER_RETRY_AFTER = "retry-after"

# The address a program listens on where its caller doesn't say; the process node sets it to the pod's own.
ENV_LISTEN_ADDRESS = "PAGEFLEET_LISTEN_ADDRESS"
# Where converted and downloaded models are kept; the user's cache folder if absent.
ENV_CACHE = "PAGEFLEET_CACHE"
# Access token of the hub, by the name that the hub's own client uses.
ENV_HUB_TOKEN = "HF_TOKEN"

# In order; each is shown in both health answers, in the log and in a metric while a model loads.
LOAD_STAGES = ("resolve", "convert", "weights", "gate", "kv", "warmup")
