"""Jobs as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmc.bench.engines import POLL, TRIES, Job, Line, perform, refuse_stopped, spread
from dmc.errors import first_line
from dmc.training.stopping import StopSignals

log = logging.getLogger("dmc")
GRACE = 60.0  # seconds for a training to end its step when it is asked to stop


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: the one that is running or that RAY_ADDRESS names, else one of this machine alone."""

    most: int | None = None  # jobs at once; None: as many as there is room for
    cpus: int = 1  # for each job
    gpus: float | None = None  # for each job; None: one where the cluster has any

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs as tasks, which Ray tries again when their worker is lost."""
        if not jobs:
            return
        import ray

        with redirect_stdout(sys.stderr):  # where Ray's own messages belong
            started = not ray.is_initialized()
            if started:
                ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            try:
                self._run(jobs)
            finally:
                if started:
                    ray.shutdown()

    def _run(self, jobs: Sequence[Job]) -> None:
        import ray
        from ray.util.queue import Queue

        gpus = min(1, ray.cluster_resources().get("GPU", 0)) if self.gpus is None else self.gpus
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(machine.get("CPU", 0) >= self.cpus and machine.get("GPU", 0) >= gpus for machine in machines):
            log.warning(f"no machine of the cluster has {self.cpus} CPUs and {gpus:g} GPUs for a cell: waiting for one")
        task: Any = ray.remote(num_cpus=self.cpus, num_gpus=gpus, max_retries=TRIES - 1)(perform_or_leave)
        lines: Any = Queue(actor_options={"num_cpus": 0})
        waiting, running = deque(spread(jobs)), dict[Any, Job]()
        with StopSignals() as stop:
            while (waiting or running) and stop.asked is None:
                while waiting and len(running) < (self.most or len(jobs)):
                    job = waiting.popleft()
                    to_do = (job, lines.put, log.getEffectiveLevel(), Path.cwd())
                    running[task.options(name=job.name).remote(*to_do)] = job
                done, _ = ray.wait(list(running), timeout=POLL)
                for line in lines.get_nowait_batch(lines.size()):
                    log.log(*line)
                for job, ref in [(running.pop(ref), ref) for ref in done]:
                    try:
                        ray.get(ref)
                    except ray.exceptions.RayError as error:
                        job.failed(first_line(error))
            for ref in running:
                ray.cancel(ref)  # a training stops after the step that it is at
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=GRACE)
        lines.shutdown()
        refuse_stopped(stop)


def perform_or_leave(job: Job, tell: Callable[[Line], object], level: int, folder: Path) -> None:
    """Run a job. If a signal ends it, end this worker: Ray tries a lost worker's tasks again, but not stopped ones."""
    try:
        perform(job, tell, level, folder)
    except KeyboardInterrupt:
        os._exit(1)
