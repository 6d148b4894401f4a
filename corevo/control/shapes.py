"""What the API shows of threads, messages, jobs, commands and agents: the names are API.md's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from corevo.contracts import AgentSpec, Command, JobView, MessageView, ThreadView
from corevo.control import cursor

Shape = Mapping[str, Any]


def job(view: JobView) -> Shape:
    return {
        "id": str(view.id),
        "thread_id": str(view.thread_id),
        "agent": view.agent,
        "lane": view.lane,
        "state": view.state,
        "epoch": view.epoch,
        "execution_id": str(view.execution_id) if view.execution_id else None,
        "queue_position": view.queue_position,
        "created_at": moment(view.created_at),
        "started_at": moment(view.started_at),
        "finished_at": moment(view.finished_at),
        "error": error(view.error_code, view.error_message),
        "cost_credits": 0,
        "cancel_requested": view.cancel_requested,
        "intervals": None,
    }


def job_frame(view: JobView) -> str:
    """The frame that tells every viewer of a job how it stands."""
    return encode({"ev": "job", "job": job(view)})


def thread(view: ThreadView) -> Shape:
    return {
        "id": str(view.id),
        "title": view.title,
        "agent": view.agent,
        "current_job_id": str(view.current_job_id) if view.current_job_id else None,
        "current_state": view.current_state,
        "unread": view.unread,
        "created_at": moment(view.created_at),
        "updated_at": moment(view.updated_at),
    }


def message(view: MessageView, html: str | None) -> Shape:
    return {
        "id": str(view.id),
        "role": view.role,
        "text": view.text,
        "html": html,
        "job_id": str(view.job_id),
        "status": view.status,
        "error": error(view.error_code, view.error_message),
        "cursor": cursor.page_by_place(view.turn, view.part),
        "created_at": moment(view.created_at),
    }


def error(code: str | None, message: str | None) -> Shape | None:
    return None if code is None else {"code": code, "message": message or code.replace("_", " ")}


def command(view: Command) -> Shape:
    return {
        "id": str(view.id),
        "kind": view.kind,
        "state": view.state,
        "requested_at": moment(view.requested_at),
        "accepted_at": moment(view.accepted_at),
        "done_at": moment(view.done_at),
    }


def agent(spec: AgentSpec) -> Shape:
    return {"name": spec.name, "lane": spec.lane, "timeout_seconds": spec.timeout_seconds}


def moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def encode(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
