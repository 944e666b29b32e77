"""Every metric of the operator, as `metrics` has those of runtime and router."""

from pagefleet_contract.metrics import Metric

_RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

RECONCILES = Metric(
    "pagefleet_operator_reconciles_total",
    "counter",
    "Reconciles by result: done, waiting (for a model's shape), temporary (an error that is tried again), refused (one "
    "that needs somebody) and bug.",
    "reconciles",
    ("result",),
)
RECONCILE_SECONDS = Metric(
    "pagefleet_operator_reconcile_seconds",
    "histogram",
    "How long one look at one service took.",
    "seconds",
    buckets=_RECONCILE_BUCKETS,
)
QUEUE_DEPTH = Metric(
    "pagefleet_operator_queue_depth", "gauge", "Services that are due and wait for a worker.", "services"
)
QUEUE_AGE = Metric(
    "pagefleet_operator_queue_age_seconds",
    "gauge",
    "How long the service that has waited longest for a worker has been due.",
    "seconds",
)
WATCH_AGE = Metric(
    "pagefleet_operator_watch_age_seconds", "gauge", "Time since the last event of any watch.", "seconds"
)
CANARY_AGE = Metric(
    "pagefleet_operator_canary_age_seconds",
    "gauge",
    "Time since the operator's own Lease was last seen by its watch; liveness fails when three renewals are missing.",
    "seconds",
)
LEADING = Metric("pagefleet_operator_leading", "gauge", "1 while this operator holds the Lease, else 0.", "none")
APPLIES = Metric(
    "pagefleet_operator_applies_total",
    "counter",
    "Writes to the cluster by kind and result: done, skipped (the server has accepted just this before), temporary and "
    "refused.",
    "writes",
    ("kind", "result"),
)
FIGURES_READS = Metric(
    "pagefleet_operator_figures_reads_total",
    "counter",
    "Reads of replicas' state pages by result: done or failed.",
    "reads",
    ("result",),
)
SERVICES = Metric(
    "pagefleet_operator_services",
    "gauge",
    "Services by condition and its status.",
    "services",
    ("condition", "status"),
)
LOOP_LAG = Metric(
    "pagefleet_operator_loop_lag_seconds",
    "gauge",
    "Longest time in the last ten seconds that the event loop was late; everything waits while it is.",
    "seconds",
)
CRD_MISSING_FIELDS = Metric(
    "pagefleet_operator_crd_missing_fields",
    "gauge",
    "Fields that this operator knows and the installed CRD lacks, so that they are dropped from every manifest.",
    "fields",
)
OPERATOR_BUILD_INFO = Metric(
    "pagefleet_operator_build_info", "gauge", "Always 1; the label says which version this is.", "none", ("version",)
)

OPERATOR_METRICS = (
    RECONCILES,
    RECONCILE_SECONDS,
    QUEUE_DEPTH,
    QUEUE_AGE,
    WATCH_AGE,
    CANARY_AGE,
    LEADING,
    APPLIES,
    FIGURES_READS,
    SERVICES,
    LOOP_LAG,
    CRD_MISSING_FIELDS,
    OPERATOR_BUILD_INFO,
)
