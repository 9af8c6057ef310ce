"""What each account used of the GPUs, and what that does to its jobs' weights. Imports estimate, impact, model, state.

    usage     decayed GPU-seconds of the account / decayed GPU-seconds of all GPUs, both over 7 days            [1]
    share     the account's part of what the active accounts are due; equal unless [accounts] says otherwise    [1]
    balance   exp(k (share - usage) / share), between 1/8 and 8; 1 while one account alone is active            [1]

An account is active while a job of it waits or runs. What ended is kept by user and quarter of a day; what runs is
counted up to now and, at once, for the time it will be left alone: a fixed job to its predicted end, a preemptible one
for its minimum run time. So a burst of starts cannot slip through before it is charged.

One thing to know: usage is measured against capacity, not against what others used: taking GPUs that would have idled
costs an account next to nothing. A preemptible job without minimum run time is free, since it may be stopped any time.
"""

from __future__ import annotations

from math import exp, log
from typing import Final, NamedTuple

from gpuq.core.contract import is_free_time
from gpuq.core.estimate import predict
from gpuq.core.impact import Weights, mean_ratios, priority_ratio
from gpuq.core.model import Attempt, Job, Stamp
from gpuq.core.state import ClusterState

WINDOW_S: Final = 7 * 86400.0  # what ended before counts no more
HALF_LIFE_S: Final = 2 * 86400.0
BUCKET_S: Final = 21600.0
LARGEST: Final = 8.0  # balance: also, as 1 / LARGEST, the smallest

Buckets = tuple[tuple[int, float], ...]  # (number of the quarter day on the steady clock, GPU-seconds), oldest first


class Standing(NamedTuple):
    """How one account is doing."""

    account: str
    share: float
    usage: float
    balance: float


# --- what ended -----------------------------------------------------------------------------------------


def charged(known: Buckets, gpus: int, start_s: float, end_s: float) -> Buckets:
    """The buckets with GPUs held from start_s to end_s added, and those outside the window before end_s left out."""
    first = int((end_s - WINDOW_S) // BUCKET_S)
    found = {bucket: amount for bucket, amount in known if bucket >= first}
    at_s = max(start_s, first * BUCKET_S)
    while at_s < end_s:
        bucket = int(at_s // BUCKET_S)
        until_s = min(end_s, (bucket + 1) * BUCKET_S)
        found[bucket] = found.get(bucket, 0.0) + gpus * (until_s - at_s)
        at_s = until_s
    return tuple(sorted(found.items()))


def is_free(job: Job) -> bool:
    """Whether what the job holds is charged to nobody."""
    return not job.spec.resources.gpus or is_free_time(job)


def usage_with(usage: dict[str, Buckets], job: Job, attempt: Attempt, now_s: float) -> dict[str, Buckets]:
    """The usage by user once an attempt has ended; users without any in the window are left out."""
    first = int((now_s - WINDOW_S) // BUCKET_S)
    kept = {user: buckets for user, buckets in usage.items() if buckets and buckets[-1][0] >= first}
    user = job.owner.name
    if not is_free(job):
        kept[user] = charged(kept.get(user, ()), len(attempt.gpus), attempt.placed_steady_s, now_s)
    return {user: buckets for user, buckets in kept.items() if buckets}


# --- what it comes to -----------------------------------------------------------------------------------


def decayed(buckets: Buckets, now_s: float) -> float:
    """GPU-seconds as they count now: halved for every half-life since the middle of their bucket."""
    first = (now_s - WINDOW_S) // BUCKET_S
    ages = ((max(0.0, now_s - (bucket + 0.5) * BUCKET_S), amount) for bucket, amount in buckets if bucket >= first)
    return sum(amount * _halved(age_s) for age_s, amount in ages)


def decayed_span_s(span_s: float) -> float:
    """The same for one GPU held over the last span_s seconds."""
    return HALF_LIFE_S / log(2) * (1.0 - _halved(min(span_s, WINDOW_S)))


def _halved(age_s: float) -> float:
    return float(0.5 ** (age_s / HALF_LIFE_S))


def balance(share: float, usage: float, steepness: float) -> float:
    """exp(k (share - usage) / share), clipped; steepness is k."""
    exponent = steepness * (share - usage) / share
    largest = log(LARGEST)
    return exp(max(-largest, min(largest, exponent)))


def standings(state: ClusterState, stamp: Stamp, weights: Weights) -> dict[str, Standing]:
    """By user, the standing of the user's account, for those with a waiting or running job."""
    accounts = {user: account_of(user, weights) for user in _active(state)}
    shares = _shares(set(accounts.values()), weights)
    used = _used(state, stamp, weights)
    capacity = _gpu_count(state) * decayed_span_s(WINDOW_S)
    used_by: dict[str, float] = {}
    for user, amount in used.items():
        account = account_of(user, weights)
        used_by[account] = used_by.get(account, 0.0) + amount
    found = {}
    for account, share in shares.items():
        usage = used_by.get(account, 0.0) / capacity if capacity else 0.0
        even = len(shares) < 2 or not weights.balance
        found[account] = Standing(account, share, usage, 1.0 if even else balance(share, usage, weights.balance))
    return {user: found[account] for user, account in accounts.items()}


def divisors(state: ClusterState, stamp: Stamp, weights: Weights) -> dict[str, float]:
    """By user, what a priority ratio is divided by: the mean over the user's waiting jobs / the account's balance."""
    means = mean_ratios(state.waiting, weights)
    if not weights.balance or len({account_of(user, weights) for user in _active(state)}) < 2:
        return means
    known = standings(state, stamp, weights)
    return {user: mean / known[user].balance for user, mean in means.items()}


def claim_divisors(state: ClusterState, stamp: Stamp, weights: Weights) -> dict[str, float]:
    """As `divisors`, with the means over the waiting and the running jobs of a user: who may stop whom rests on it."""
    sums: dict[str, tuple[float, int]] = {}
    asked = [(shape.user, shape.priority, shape.nice, len(queue)) for shape, queue in state.waiting.items()]
    asked += [(job.owner.name, job.spec.priority, job.spec.nice, 1) for job in state.active()]
    for user, priority, nice, jobs in asked:
        total, count = sums.get(user, (0.0, 0))
        sums[user] = (total + jobs * priority_ratio(priority, nice, weights), count + jobs)
    known = standings(state, stamp, weights)
    return {user: total / count / known[user].balance for user, (total, count) in sums.items()}


def balance_after(state: ClusterState, standing: Standing, gpus: int, charged_s: float, weights: Weights) -> float:
    """The balance of an account once a start of so many GPUs was charged for that long; never above the present one."""
    capacity = _gpu_count(state) * decayed_span_s(WINDOW_S)
    if standing.balance == 1.0 or not capacity:
        return standing.balance
    return balance(standing.share, standing.usage + gpus * charged_s / capacity, weights.balance)


def account_of(user: str, weights: Weights) -> str:
    """The account that pays for a user's jobs: the first of the configured ones that names the user, else the user."""
    return next((each.name for each in weights.accounts if user in each.users), user)


def _active(state: ClusterState) -> set[str]:
    return {*(shape.user for shape in state.waiting), *(job.owner.name for job in state.active())}


def _gpu_count(state: ClusterState) -> int:
    """GPUs that can be given out: of one that is cut into slices, the slices."""
    gpus = [gpu for node in state.nodes.values() for gpu in node.gpus]
    cut = {gpu.parent for gpu in gpus}
    return sum(1 for gpu in gpus if gpu.uuid not in cut)


def _shares(accounts: set[str], weights: Weights) -> dict[str, float]:
    configured = {each.name: each.share for each in weights.accounts}
    due = {account: configured.get(account, 1.0) for account in sorted(accounts)}
    total = sum(due.values())
    return {account: part / total for account, part in due.items()}


def _used(state: ClusterState, stamp: Stamp, weights: Weights) -> dict[str, float]:
    """GPU-seconds by user as they count now, running attempts with the time for which they are left alone."""
    used = {user: decayed(buckets, stamp.steady_s) for user, buckets in state.usage.items()}
    for job in state.active():
        attempt = job.attempt
        if attempt is None or is_free(job):
            continue
        held_s = max(0.0, stamp.steady_s - attempt.placed_steady_s)
        protected_s = _protected_s(state, job, weights)
        counted_s = decayed_span_s(held_s) + max(0.0, protected_s - held_s)
        used[job.owner.name] = used.get(job.owner.name, 0.0) + len(attempt.gpus) * counted_s
    return used


def _protected_s(state: ClusterState, job: Job, weights: Weights) -> float:
    """From its start on, how long a job is left alone."""
    if job.spec.preemptible:
        return job.spec.min_runtime_s
    return predict(state, job, weights).on(state.job_speed(job))
