"""The options of submit and run, as a table. Imports options.

One thing to know: each can also be set by GPUQ_SUBMIT_<NAME> (its first long spelling) and by a #GPUQ line; the
command line beats the environment, which beats the directive.
"""

from __future__ import annotations

from typing import Final

from gpuq.cli.options import Argument, Option

COMMAND_WORDS: Final = Argument(
    "command", "COMMAND...", "The command with its arguments, or a script with its own.", many=True, required=False
)

RESOURCE_OPTIONS: Final = (
    Option(("-G", "--gpus"), "GPUs, all on one machine: 2, or with a type a100:2. Default 1.", "[TYPE:]N"),
    Option(("--gpu-type",), "Only GPUs of this type; any for no wish.", "TYPE"),
    Option(("--gres",), "Slurm's spelling: gpu:2 or gpu:a100:2.", "gpu[:TYPE][:N]"),
    Option(("--gpu-ids",), "Exactly these GPUs: indices on one machine, or UUIDs.", "ID,..."),
    Option(("--gpu-mem", "--vram"), "Memory each GPU must have, such as 20G.", "SIZE"),
    Option(("--mem",), "Host memory; a bare number is MiB.", "SIZE"),
    Option(("-c", "--cpus-per-task", "--cpus"), "CPU cores.", "N"),
    Option(("-w", "--nodelist"), "Only on these machines.", "NODE,...", completes="nodes"),
    Option(("-x", "--exclude"), "Not on these machines.", "NODE,...", completes="nodes"),
)
TIME_OPTIONS: Final = (
    Option(("-t", "--time"), "Time limit: 30 (minutes), 2h30m, HH:MM:SS, D-HH; 0 for none.", "TIME"),
    Option(("-b", "--begin"), "Not before: 17:30, tomorrow, now+2h, 2026-05-01T08:00.", "TIME"),
    Option(("--deadline",), "Wanted by then, as in --begin: weighs more as that nears; nothing is stopped.", "TIME"),
    Option(("--grace",), "Time between TERM and KILL when the job is told to end.", "TIME"),
    Option(("--signal",), "Signal before the end, such as USR1@60; B: to the first process only.", "[B:]SIG[@S]"),
    Option(("--min-runtime",), "With --preemptible: this long it runs undisturbed.", "TIME"),
    Option(("--preemptible",), "May be stopped and queued again when others need the GPUs."),
)
ORDER_OPTIONS: Final = (
    Option(("-d", "--dependency"), "After other jobs: afterok:12:13,afterany:14 (, and; ? or).", "CONDITION"),
    Option(("--after",), "After these jobs succeed: 12,13.", "JOB,...", completes="jobs"),
    Option(("--keep-on-failed-dep",), "Hold instead of cancel when the condition can never be met."),
    Option(("-H", "--hold"), "Hold it; it starts after gpuq release."),
    Option(("--priority",), "Larger goes first.", "N"),
    Option(("--nice",), "Larger goes later.", "N"),
    Option(("--requeue",), "Run again after a lost machine or a preemption.", off=("--no-requeue",)),
    Option(("--retries",), "Run again up to N times after its own failure.", "N"),
)
ARRAY_OPTIONS: Final = (
    Option(("-a", "--array"), "An array of jobs: 0-31, 1,3,5, 0-31:2%4 (at most 4 at once).", "INDICES"),
    Option(("--each-line",), "One job for each line of a file (- for standard input): {line} in the command.", "FILE",
           completes="files"),
    Option(("--sweep",), "One job for each value: lr=1e-3,1e-4 for {lr} in the command; repeat it for a product.",
           "NAME=V,...", many=True),
)  # fmt: skip
FILE_OPTIONS: Final = (
    Option(("-D", "--chdir", "--cwd"), "Working directory.", "DIR", completes="directories"),
    Option(("-o", "--output"), "File for the output, with %j %A %a %x %u %N; default: gpuq keeps it.", "FILE",
           completes="files"),
    Option(("-e", "--error"), "File for the error output; default: with the output.", "FILE", completes="files"),
    Option(("--open-mode",), "append (default) or truncate the output files.", "MODE", completes="append truncate"),
)  # fmt: skip
ENVIRONMENT_OPTIONS: Final = (
    Option(("--export",), "ALL (default), NONE, or NAME[=VALUE],...", "LIST"),
    Option(("--env",), "Set a variable for the job; repeatable.", "NAME=VALUE", many=True),
    Option(("--env-file",), "Set variables from a file of NAME=VALUE lines.", "FILE", many=True, completes="files"),
    Option(("--no-env",), "As --export=NONE."),
    Option(("--visible",), "GPUs in CUDA_VISIBLE_DEVICES by uuid (default) or index.", "HOW", completes="uuid index"),
    Option(("--cuda-index",), "As --visible index."),
    Option(("--slurm-env",), "Also set SLURM_JOB_ID and its kin."),
)
OTHER_OPTIONS: Final = (
    Option(("-J", "--job-name", "--name"), "Name of the job.", "NAME"),
    Option(("--comment",), "A remark that is kept with the job.", "TEXT"),
    Option(("--wrap",), "Run this line with /bin/sh.", "LINE"),
    Option(("--like",), "As that job, with what is given here changed.", "JOB", completes="jobs"),
)
JOB_OPTIONS: Final = (
    *RESOURCE_OPTIONS, *TIME_OPTIONS, *ORDER_OPTIONS, *ARRAY_OPTIONS, *FILE_OPTIONS, *ENVIRONMENT_OPTIONS,
    *OTHER_OPTIONS,
)  # fmt: skip
