"""A run carried out once more from its config, for what was not recorded; sure to be the same."""

from kvsim.reports.lives.event_log import EventLog, event_log, read_events
from kvsim.reports.lives.spans import check_same
from kvsim.reports.rundir.run import Run
from kvsim.sim.errors import KvsimError
from kvsim.sim.run import Outcome, deployment_of, prepare
from kvsim.sim.traffic import Traffic
from kvsim.workloads.source import opened


def repeated(run: Run, lacking: str, *, step_log: bool = False, allow_code: bool = False) -> Outcome:
    """The outcome of an earlier run once more, with its events.

    Parameters
    ----------
    lacking : str
        What was not recorded, for the error.
    step_log : bool
        Also record the steps.
    allow_code : bool
        Run code that the run's config names.

    Raises
    ------
    KvsimError
        A config that cannot be carried out, or that gives other requests than the run has.
    """
    try:
        deployment, traffic = deployment_of(run.config, "its config", None if allow_code else ())
        source = opened(Traffic.from_json(traffic))
        simulation = prepare(deployment, source.workload(), source.as_json(), step_log=step_log, events=True)
    except KvsimError as error:
        raise KvsimError(f"{run.path} has no {lacking}, and cannot be repeated: {error}") from error
    outcome = simulation.outcome()
    check_same(run, outcome.requests)
    return outcome


def event_log_of(run: Run, *, allow_code: bool = False) -> EventLog:
    """The events of a run: recorded, or those of a repetition."""
    log = read_events(run.path)
    return event_log(repeated(run, "events", allow_code=allow_code).events) if log is None else log
