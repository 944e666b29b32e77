"""Names that programs, manifests and documents share: the resource's, labels, ports, paths, headers, environment."""

import hashlib

# --- the resource

GROUP = "pagefleet.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"
SINGULAR = "inferenceservice"
SHORT_NAME = "pfs"  # never isvc: KServe and OME own it
CATEGORY = "pagefleet"
CRD_NAME = f"{PLURAL}.{GROUP}"

# The column with the service's address, where a table shows it.
COLUMN_URL = "URL"

# --- labels and annotations

LABEL_SERVICE = f"{GROUP}/service"
LABEL_COMPONENT = f"{GROUP}/component"
LABEL_NAME = "app.kubernetes.io/name"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
NAME_VALUE = "pagefleet"
MANAGED_BY_VALUE = "pagefleet"
COMPONENT_ENGINE = "engine"
COMPONENT_ROUTER = "router"
COMPONENT_OPERATOR = "operator"

# On pod templates: the hash of the whole rendered template, by which pods of this generation are known.
ANNOTATION_TEMPLATE_HASH = f"{GROUP}/template-hash"
# On the engine Deployment: what the spec alone made of the template, and the image in force. An operator with another
# default image leaves a running service alone until its spec asks for a roll.
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
ANNOTATION_IMAGE = f"{GROUP}/image"
# On a pod: it gets no new requests. A pod that is being deleted counts as marked.
ANNOTATION_DRAIN = f"{GROUP}/drain"
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

FIELD_MANAGER = "pagefleet-operator"

# The group of the user that our images run as; the Dockerfiles name it too.
IMAGE_GROUP_ID = 10001

# --- mount paths in pods; the process node rewrites them where they stand in a command, argument or environment value

MOUNT_ROOT = "/pagefleet"
MOUNT_CONFIG = f"{MOUNT_ROOT}/config"
MOUNT_LIVE = f"{MOUNT_ROOT}/live"
MOUNT_KEYS = f"{MOUNT_ROOT}/keys"
MOUNT_MODEL = f"{MOUNT_ROOT}/model"
MOUNT_CACHE = f"{MOUNT_ROOT}/cache"
MOUNT_TMP = f"{MOUNT_ROOT}/tmp"
# Where processes of one pod share memory; not ours to choose.
MOUNT_SHARED_MEMORY = "/dev/shm"
MOUNT_ROUTER = f"{MOUNT_ROOT}/router"
MOUNT_SETTINGS = f"{MOUNT_ROOT}/settings"
MOUNT_ROOT_KEY = f"{MOUNT_ROOT}/root-key"

FILE_ENGINE = "engine.json"
FILE_LIVE = "live.json"
FILE_OPERATOR_KEYS = "operator-keys"
FILE_ROUTER = "router.json"
FILE_SETTINGS = "settings.yaml"
FILE_ROOT_KEY = "key"

ROUTER_SERVICE_ACCOUNT = "pagefleet-router"

# --- condition types, in the order in which status shows them

CONDITION_READY = "Ready"
CONDITION_AVAILABLE = "Available"
CONDITION_MODEL_FITS = "ModelFits"
CONDITION_MODEL_LOADED = "ModelLoaded"
CONDITION_PROGRESSING = "Progressing"
CONDITION_SCALING_ACTIVE = "ScalingActive"
CONDITIONS = (
    CONDITION_READY,
    CONDITION_AVAILABLE,
    CONDITION_MODEL_FITS,
    CONDITION_MODEL_LOADED,
    CONDITION_PROGRESSING,
    CONDITION_SCALING_ACTIVE,
)

# The process node's reason for a container that ended because its node was stopped, by nothing of its own.
REASON_NODE_STOPPED = "NodeStopped"

# --- ports, paths, headers

HTTP_PORT = 8000
HTTP_PORT_NAME = "http"
OPERATOR_PORT = 8080

PATH_METRICS = "/metrics"
PATH_LIVE = "/health/live"
PATH_READY = "/health/ready"
PATH_STATE = "/pagefleet/v1/state"
PATH_POLICY = "/pagefleet/v1/policy"
PATH_DRAIN = "/pagefleet/v1/drain"

HEADER_REQUEST_ID = "x-request-id"
HEADER_RETRY_AFTER = "retry-after"

# The address a program listens on where its caller doesn't say; the process node sets it to the pod's own.
# In manifests it is LISTEN_ALL.
ENV_LISTEN_ADDRESS = "PAGEFLEET_LISTEN_ADDRESS"
LISTEN_ALL = "*"
# How many bytes of memory a program may take, where no control group says so: the process node sets it to the
# container's limit.
ENV_MEMORY_LIMIT = "PAGEFLEET_MEMORY_LIMIT_BYTES"
# Where converted and downloaded models are kept; the user's cache folder if absent.
ENV_CACHE = "PAGEFLEET_CACHE"
# Access token of the hub, by the name that the hub's own client uses.
ENV_HUB_TOKEN = "HF_TOKEN"
# What manifests set for every pod by the downward API, and what no user may set.
ENV_POD_NAME = "POD_NAME"
ENV_POD_NAMESPACE = "POD_NAMESPACE"
ENV_POD_IP = "POD_IP"

# In order; each is shown in both health answers, in the log and in a metric while a model loads.
LOAD_STAGES = ("resolve", "convert", "weights", "gate", "kv", "warmup")


LABEL_LENGTH = 63


def child_name(service: str, suffix: str) -> str:
    """Return the name of a child of the service: `SERVICE-SUFFIX`, or where that is longer than a label may be, cut
    and marked with a hash of the whole name. Stable, and different for services that differ only behind the cut."""
    name = f"{service}-{suffix}"
    if len(name) <= LABEL_LENGTH:
        return name
    digest = hashlib.sha256(service.encode()).hexdigest()[:8]
    return f"{service[: LABEL_LENGTH - len(suffix) - len(digest) - 2].rstrip('-')}-{digest}-{suffix}"


def service_selector(service: str, component: str) -> dict[str, str]:
    """Return the labels by which the pods of one component of a service are found."""
    return {LABEL_SERVICE: service, LABEL_COMPONENT: component}
