"""Which processes worked on a run, on what, and when."""

import logging
from datetime import UTC, datetime
from pathlib import Path

from pipeline.common.records import Environment, Management, Session
from pipeline.common.shard import Shard

log = logging.getLogger(__name__)


def new_session(environment: Environment, shard: Shard) -> Session:
    """A session that begins now."""
    return Session(start_time=_now(), end_time=None, process=shard.process, **dict(environment))


def add_session(management: Management, environment: Environment, shard: Shard) -> None:
    """Begin another session of a run; what it changes of the environment is warned about."""
    for name, now in environment:
        before = getattr(management, name)
        # Processes that share the prompts have a device each.
        is_usual = name == "git_commit" or (name == "device" and environment.n_processes > 1)
        if now != before and not is_usual:
            log.warning(
                "this run was begun with %s %s and goes on with %s: its timings mix both",
                name,
                before,
                now,
            )
        setattr(management, name, now)
    management.sessions.append(new_session(environment, shard))
    management.end_time = management.exp_duration = None


def close_killed_sessions(management: Management, shard: Shard, raw_results: Path) -> None:
    """A killed session recorded no end: take the time of its last result, or its start if it has none.

    Only processes of the same division as `shard` can be at work now, so that all others' sessions are over.
    """
    for session in management.sessions:
        is_other = session.n_processes == shard.n_processes and session.process != shard.process
        if session.end_time is not None or is_other:
            continue
        results = Shard(session.process, session.n_processes).own(raw_results)
        end = datetime.fromisoformat(session.start_time)
        if results.exists():
            end = max(end, datetime.fromtimestamp(results.stat().st_mtime, UTC))
        session.end_time = end.isoformat(timespec="milliseconds")


def end_session(management: Management, shard: Shard) -> None:
    """End the session of this process, if it began one."""
    for session in management.sessions:
        if session.end_time is None and (session.process, session.n_processes) == (shard.process, shard.n_processes):
            session.end_time = _now()


def end_run(management: Management) -> None:
    """Sum up the sessions of a run that is complete."""
    ended = [session for session in management.sessions if session.end_time is not None]
    management.end_time = max(str(session.end_time) for session in ended)
    management.exp_duration = sum(_seconds(session) for session in ended)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _seconds(session: Session) -> float:
    assert session.end_time is not None
    return (datetime.fromisoformat(session.end_time) - datetime.fromisoformat(session.start_time)).total_seconds()
