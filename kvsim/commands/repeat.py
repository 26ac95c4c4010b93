"""Repeat a run from its config to record what was missing, and check that the results are the same."""

from kvsim.reports.lives.event_log import EventLog, event_log, read_events
from kvsim.reports.lives.spans import check_same
from kvsim.reports.rundir.run import Run, read_run
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.run import Outcome, Simulation, deployment_of, goals_of, prepare
from kvsim.workloads.source import opened


def prepared(run: Run, lacking: str, *, step_log: bool = False) -> Simulation:
    """Prepare an earlier run to be repeated with its events recorded.

    Parameters
    ----------
    lacking : str
        The missing recording, for the error.
    step_log : bool
        Also record the steps.

    Raises
    ------
    KvsimError
        The config cannot be run.
    """
    try:
        deployment, traffic = deployment_of(run.config, "its config")
        source = opened(Traffic.from_json(traffic))
        return prepare(
            deployment,
            source.workload(),
            source.as_json(),
            step_log=step_log,
            events=True,
            goals=goals_of(run.config, "its config"),
        )
    except KvsimError as error:
        raise KvsimError(f"{run.path} has no {lacking}, and cannot be repeated: {error}") from error


def checked(run: Run, outcome: Outcome) -> Outcome:
    """The outcome, if it equals the earlier run's; else KvsimError."""
    check_same(run, outcome.requests)
    return outcome


def event_log_of(run: Run) -> EventLog:
    """The events of a run, as recorded or from a repetition."""
    log = read_events(run.path)
    if log is None:
        run = run if run.place is None else read_run(run.path)
        outcome = checked(run, prepared(run, "events").outcome())
        return event_log(outcome.events)
    return log
