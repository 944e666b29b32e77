"""Every metric of every program: name, kind, labels, buckets, help and unit, and vLLM's name for it where it has one.

Programs register from this table and from nowhere else; dashboards, alerts and the scaler are checked against it.
"""

from dataclasses import dataclass
from typing import Literal

MetricKind = Literal["gauge", "counter", "histogram"]

# vLLM's own bounds, so that boards made for it keep their meaning.
_LATENCY_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_INTER_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0,
)  # fmt: skip
_REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_TOKEN_BUCKETS = tuple(
    float(digit * 10**exponent) for exponent in range(6) for digit in (1, 2, 5) if digit * 10**exponent <= 200_000
)


@dataclass(frozen=True, slots=True)
class VllmAlias:
    """One series of vLLM that shows the same figure. Labels that `labels` doesn't name are summed over; where `values`
    are given, only these values of the (one) label are shown, under vLLM's words. Each also carries `model_name` and
    `engine`."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()  # ours, theirs
    values: tuple[tuple[str, str], ...] = ()  # ours, theirs


@dataclass(frozen=True, slots=True)
class Metric:
    name: str  # as /metrics shows it: counters end in _total
    kind: MetricKind
    help: str
    unit: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    vllm: tuple[VllmAlias, ...] = ()


# --- the runtime: what one replica shows

KV_BLOCKS = Metric(
    "pagefleet_kv_blocks",
    "gauge",
    "KV blocks by state: free, cached (filled, findable, not in use) and live (in use).",
    "blocks",
    ("state",),
)
KV_BLOCK_BUDGET = Metric("pagefleet_kv_block_budget", "gauge", "KV blocks in force, all states together.", "blocks")
KV_USAGE = Metric(
    "pagefleet_kv_usage_ratio",
    "gauge",
    "Live KV blocks as a share of the budget, 0 to 1. Cached blocks don't count: they can be taken at once.",
    "ratio",
    vllm=(VllmAlias("vllm:kv_cache_usage_perc"),),
)
KV_SLOTS = Metric(
    "pagefleet_kv_slots",
    "gauge",
    "Slots of live blocks: filled hold a token's KV, allocated are all of them. Shared blocks count once.",
    "tokens",
    ("state",),
)
KV_WASTE = Metric(
    "pagefleet_kv_waste_ratio", "gauge", "Share of the allocated slots that hold no token, 0 to 1.", "ratio"
)
KV_CONFIG = Metric(
    "pagefleet_kv_config_info",
    "gauge",
    "Always 1; the labels say how the KV cache is laid out.",
    "none",
    ("block_size", "num_blocks", "kv_dtype", "bytes_per_block"),
    vllm=(
        VllmAlias(
            "vllm:cache_config_info",
            (("block_size", "block_size"), ("num_blocks", "num_gpu_blocks"), ("kv_dtype", "cache_dtype")),
        ),
    ),
)
BUILD_INFO = Metric(
    "pagefleet_build_info",
    "gauge",
    "Always 1; the labels say what is served by which version.",
    "none",
    ("version", "model_name", "model_type", "dtype"),
)
SEQUENCES_RUNNING = Metric(
    "pagefleet_sequences_running",
    "gauge",
    "Sequences that hold KV blocks and take part in steps.",
    "sequences",
    vllm=(VllmAlias("vllm:num_requests_running"),),
)
REQUESTS_WAITING = Metric(
    "pagefleet_requests_waiting",
    "gauge",
    "Requests in the queue.",
    "requests",
    vllm=(VllmAlias("vllm:num_requests_waiting"),),
)
REQUESTS_IN_FLIGHT = Metric(
    "pagefleet_requests_in_flight",
    "gauge",
    "Requests that the server has taken and not yet answered to the end.",
    "requests",
)
QUEUED_TOKENS = Metric(
    "pagefleet_queued_prompt_tokens", "gauge", "Prompt tokens of the requests in the queue.", "tokens"
)
TOKEN_BUDGET = Metric("pagefleet_step_token_budget", "gauge", "Most tokens that the next step may compute.", "tokens")
LAST_STEP_AGE = Metric(
    "pagefleet_last_step_age_seconds", "gauge", "Time since the last step finished; grows while idle.", "seconds"
)
STALLED = Metric(
    "pagefleet_stalled_seconds",
    "gauge",
    "How long work has waited without any step finishing; 0 while idle. Liveness fails at serving.stallLimitSeconds.",
    "seconds",
)
ENGINE_STATE = Metric(
    "pagefleet_engine_state", "gauge", "1 for the state that the engine is in, 0 for the others.", "none", ("state",)
)
LOAD_PROGRESS = Metric(
    "pagefleet_load_progress_ratio", "gauge", "How far each stage of loading the model is, 0 to 1.", "ratio", ("stage",)
)
STEPS = Metric("pagefleet_steps_total", "counter", "Engine steps.", "steps")
STEP_SECONDS = Metric("pagefleet_step_seconds_total", "counter", "Time spent in engine steps.", "seconds")
PROMPT_TOKENS = Metric(
    "pagefleet_prompt_tokens_total",
    "counter",
    "Prompt tokens of admitted requests, once each.",
    "tokens",
    vllm=(VllmAlias("vllm:prompt_tokens_total"),),
)
GENERATION_TOKENS = Metric(
    "pagefleet_generation_tokens_total",
    "counter",
    "Tokens sampled.",
    "tokens",
    vllm=(VllmAlias("vllm:generation_tokens_total"),),
)
COMPUTED_TOKENS = Metric(
    "pagefleet_computed_tokens_total", "counter", "Tokens that went through the model, prompt and answer.", "tokens"
)
PREFIX_QUERIED_TOKENS = Metric(
    "pagefleet_prefix_queried_tokens_total",
    "counter",
    "Prompt tokens that were looked up in the prefix index: hits and misses.",
    "tokens",
    vllm=(VllmAlias("vllm:prefix_cache_queries_total"),),
)
PREFIX_HIT_TOKENS = Metric(
    "pagefleet_prefix_hit_tokens_total",
    "counter",
    "Prompt tokens whose KV was found instead of computed.",
    "tokens",
    vllm=(VllmAlias("vllm:prefix_cache_hits_total"), VllmAlias("vllm:prompt_tokens_cached_total")),
)
COPIES_ON_WRITE = Metric(
    "pagefleet_copies_on_write_total", "counter", "KV blocks copied because a shared one was to be written.", "blocks"
)
EVICTED_BLOCKS = Metric(
    "pagefleet_evicted_blocks_total", "counter", "Cached KV blocks that were taken for new use.", "blocks"
)
PREEMPTIONS = Metric(
    "pagefleet_preemptions_total",
    "counter",
    "Running sequences whose blocks were taken: for other sequences' blocks, or because the budget was cut.",
    "sequences",
    ("cause",),
    vllm=(VllmAlias("vllm:num_preemptions_total"),),
)
RECOMPUTED_TOKENS = Metric(
    "pagefleet_recomputed_tokens_total",
    "counter",
    "Tokens computed again after a preemption, by the preemption's cause.",
    "tokens",
    ("cause",),
)
REQUESTS = Metric(
    "pagefleet_requests_total",
    "counter",
    "Requests that ended, by reason: stop, length, cancelled, error, timeout (in the queue) and refused. "
    "The server's own warm-up request is one of them.",
    "requests",
    ("reason",),
    vllm=(
        VllmAlias(
            "vllm:request_success_total",
            (("reason", "finished_reason"),),
            (("stop", "stop"), ("length", "length"), ("cancelled", "abort"), ("error", "error")),
        ),
    ),
)
TIME_TO_FIRST_TOKEN = Metric(
    "pagefleet_time_to_first_token_seconds",
    "histogram",
    "From a request's arrival to its first token.",
    "seconds",
    buckets=_LATENCY_BUCKETS,
    vllm=(VllmAlias("vllm:time_to_first_token_seconds"),),
)
INTER_TOKEN = Metric(
    "pagefleet_inter_token_seconds",
    "histogram",
    "Between two tokens of one choice.",
    "seconds",
    buckets=_INTER_TOKEN_BUCKETS,
    vllm=(VllmAlias("vllm:inter_token_latency_seconds"),),
)
REQUEST_QUEUE = Metric(
    "pagefleet_request_queue_seconds",
    "histogram",
    "From a request's arrival to its first step.",
    "seconds",
    buckets=_REQUEST_BUCKETS,
    vllm=(VllmAlias("vllm:request_queue_time_seconds"),),
)
REQUEST_SECONDS = Metric(
    "pagefleet_request_seconds",
    "histogram",
    "From a request's arrival to its last token.",
    "seconds",
    buckets=_REQUEST_BUCKETS,
    vllm=(VllmAlias("vllm:e2e_request_latency_seconds"),),
)
REQUEST_PROMPT_TOKENS = Metric(
    "pagefleet_request_prompt_tokens",
    "histogram",
    "Prompt tokens of each finished request.",
    "tokens",
    buckets=_TOKEN_BUCKETS,
    vllm=(VllmAlias("vllm:request_prompt_tokens"),),
)
REQUEST_GENERATION_TOKENS = Metric(
    "pagefleet_request_generation_tokens",
    "histogram",
    "Tokens sampled for each finished request, all choices together.",
    "tokens",
    buckets=_TOKEN_BUCKETS,
    vllm=(VllmAlias("vllm:request_generation_tokens"),),
)

RUNTIME_METRICS = (
    KV_BLOCKS,
    KV_BLOCK_BUDGET,
    KV_USAGE,
    KV_SLOTS,
    KV_WASTE,
    KV_CONFIG,
    BUILD_INFO,
    SEQUENCES_RUNNING,
    REQUESTS_WAITING,
    REQUESTS_IN_FLIGHT,
    QUEUED_TOKENS,
    TOKEN_BUDGET,
    LAST_STEP_AGE,
    STALLED,
    ENGINE_STATE,
    LOAD_PROGRESS,
    STEPS,
    STEP_SECONDS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    COMPUTED_TOKENS,
    PREFIX_QUERIED_TOKENS,
    PREFIX_HIT_TOKENS,
    COPIES_ON_WRITE,
    EVICTED_BLOCKS,
    PREEMPTIONS,
    RECOMPUTED_TOKENS,
    REQUESTS,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN,
    REQUEST_QUEUE,
    REQUEST_SECONDS,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
)

# --- the router: what one front door shows

ROUTER_REQUESTS = Metric(
    "pagefleet_router_requests_total",
    "counter",
    "Requests that ended, by the status that the client got; 499 where it left before any.",
    "requests",
    ("code",),
)
ROUTER_IN_FLIGHT = Metric(
    "pagefleet_router_requests_in_flight", "gauge", "Requests taken and not yet answered to the end.", "requests"
)
ROUTER_RETRIES = Metric(
    "pagefleet_router_retries_total",
    "counter",
    "Tries of a request on another replica, by what was wrong with the one before: connect, reset, or the code of its "
    "refusal.",
    "requests",
    ("reason",),
)
ROUTER_LOST = Metric(
    "pagefleet_router_lost_answers_total",
    "counter",
    "Answers that had begun when their replica was lost, or the router's drain ended. Streams end with an error event.",
    "requests",
)
ROUTER_REPLICAS = Metric(
    "pagefleet_router_replicas",
    "gauge",
    "Engine pods by state: ready, draining (no new requests) and unready.",
    "replicas",
    ("state",),
)
ROUTER_TIME_TO_FIRST_BYTE = Metric(
    "pagefleet_router_time_to_first_byte_seconds",
    "histogram",
    "From a request's arrival to the first byte of its answer's body.",
    "seconds",
    buckets=_LATENCY_BUCKETS,
)
ROUTER_WATCH_AGE = Metric(
    "pagefleet_router_watch_age_seconds",
    "gauge",
    "Time since the Kubernetes API was last heard of. The replicas known then go on being used.",
    "seconds",
)
ROUTER_BUILD_INFO = Metric(
    "pagefleet_router_build_info",
    "gauge",
    "Always 1; the labels say whose front door this is, and its version.",
    "none",
    ("version", "service", "model_name"),
)

ROUTER_METRICS = (
    ROUTER_REQUESTS,
    ROUTER_IN_FLIGHT,
    ROUTER_RETRIES,
    ROUTER_LOST,
    ROUTER_REPLICAS,
    ROUTER_TIME_TO_FIRST_BYTE,
    ROUTER_WATCH_AGE,
    ROUTER_BUILD_INFO,
)
