"""The gateway's HTTP as API.md has it: a real server, a real database, the worker played by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from corevo.store.connections import Connections
from tests.gateways import gateway_on
from tests.hand import Hand
from tests.processes import eventually, role

MISSING = str(uuid4())


@pytest.fixture
async def web(database: str) -> AsyncIterator[str]:
    async with gateway_on(database, listens=False) as url:
        yield url


@pytest.fixture
async def hand(database: str) -> AsyncIterator[Hand]:
    db = Connections(database, limit=1, name="test hand")
    hand = Hand(db)
    await hand.register("demo")
    yield hand
    await db.close()


@pytest.fixture
async def http(web: str, hand: Hand) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=web, timeout=20) as client:
        yield client


def is_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Checks a problem document and returns it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["code"] == code and body["status"] == status
    assert body["title"] and body["detail"] and body["type"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


async def submit(http: httpx.AsyncClient, text: str = "hello", **fields: Any) -> dict[str, Any]:
    answer = await http.post("/api/jobs", json={"text": text, **fields})
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.json()
    return body


class TestJobs:
    async def test_a_job_has_exactly_the_fields_of_the_contract(self, http: httpx.AsyncClient) -> None:
        body = await submit(http)
        assert body["outcome"] == "queued"
        assert set(body["job"]) == {
            "id", "thread_id", "agent", "lane", "state", "epoch", "execution_id", "queue_position", "created_at",
            "started_at", "finished_at", "error", "cost_credits", "cancel_requested", "intervals",
        }  # fmt: skip
        assert body["job"]["state"] == "queued"
        assert body["job"]["queue_position"] == 1
        again = await http.get(f"/api/jobs/{body['job']['id']}")
        assert again.json() == body["job"]

    async def test_it_runs_to_its_end_and_leaves_messages(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job = (await submit(http))["job"]
        run = await hand.start()
        await run.say("good ", "day")
        await run.finish()
        ended = (await http.get(f"/api/jobs/{job['id']}")).json()
        assert (ended["state"], ended["error"]) == ("completed", None)
        messages = (await http.get(f"/api/threads/{job['thread_id']}/messages")).json()
        assert [(m["role"], m["text"], m["status"]) for m in messages["items"]] == [
            ("user", "hello", None),
            ("assistant", "good day", "completed"),
        ]
        assert set(messages["items"][0]) == {
            "id", "role", "text", "html", "job_id", "status", "error", "cursor", "created_at",
        }  # fmt: skip
        assert messages["next"] is None

    async def test_a_failure_is_told_in_code_and_words(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job = (await submit(http))["job"]
        await (await hand.start()).finish("failed", "agent_error")
        ended = (await http.get(f"/api/jobs/{job['id']}")).json()
        assert ended["error"] == {"code": "agent_error", "message": "agent error"}

    async def test_input_may_be_any_json(self, http: httpx.AsyncClient, hand: Hand) -> None:
        answer = await http.post("/api/jobs", json={"input": {"numbers": [1, 2.5, None]}, "metadata": {"a": "b"}})
        assert answer.status_code == 202
        thread = answer.json()["job"]["thread_id"]
        messages = (await http.get(f"/api/threads/{thread}/messages")).json()
        assert json.loads(messages["items"][0]["text"]) == {"numbers": [1, 2.5, None]}

    async def test_lists_are_paged_newest_first(self, http: httpx.AsyncClient) -> None:
        made = [(await submit(http, str(n)))["job"]["id"] for n in range(5)]
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = (await http.get("/api/jobs", params={"limit": "2", **after})).json()
            seen += [job["id"] for job in page["items"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert seen == made[::-1]

    async def test_a_list_can_be_of_one_thread(self, http: httpx.AsyncClient) -> None:
        first = (await submit(http))["job"]
        await submit(http, "another thread")
        second = (await submit(http, "more", thread_id=first["thread_id"], on_busy="enqueue"))["job"]
        page = (await http.get("/api/jobs", params={"thread_id": first["thread_id"]})).json()
        assert [job["id"] for job in page["items"]] == [second["id"], first["id"]]

    async def test_a_busy_thread_is_treated_as_asked(self, http: httpx.AsyncClient) -> None:
        first = (await submit(http))["job"]
        thread = first["thread_id"]
        assert (await submit(http, "hello", thread_id=thread))["outcome"] == "already_running"
        assert (await submit(http, "next", thread_id=thread, on_busy="enqueue"))["outcome"] == "enqueued"
        refused = await http.post("/api/jobs", json={"text": "no", "thread_id": thread, "on_busy": "reject"})
        is_problem(refused, 409, "thread_busy")
        assert (await submit(http, "instead", thread_id=thread))["outcome"] == "replaced"

    async def test_a_full_line_says_when_to_come_back(self, http: httpx.AsyncClient) -> None:
        thread = (await submit(http))["job"]["thread_id"]
        for n in range(5):
            await submit(http, str(n), thread_id=thread, on_busy="enqueue")
        refused = await http.post("/api/jobs", json={"text": "6", "thread_id": thread, "on_busy": "enqueue"})
        body = is_problem(refused, 429, "thread_line_full")
        assert refused.headers["retry-after"] == str(body["retry_after_seconds"])

    async def test_an_agent_that_nobody_serves_is_unavailable(self, http: httpx.AsyncClient, hand: Hand) -> None:
        is_problem(await http.post("/api/jobs", json={"text": "x", "agent": "unheard-of"}), 404, "agent_unknown")
        await hand.db.fetch("update corevo.workers set beat_at = beat_at - interval '2 minutes'")
        refused = await http.post("/api/jobs", json={"text": "x", "agent": "demo"})
        is_problem(refused, 503, "agent_unavailable")
        assert int(refused.headers["retry-after"]) > 0


class TestIdempotency:
    async def test_the_same_body_gets_the_same_job_and_another_body_409(self, http: httpx.AsyncClient) -> None:
        key = {"Idempotency-Key": "k1"}
        first = await http.post("/api/jobs", content=b'{"text": "a", "agent": "demo"}', headers=key)
        again = await http.post("/api/jobs", content=b'{ "agent":"demo",\n"text":"a" }', headers=key)
        assert first.json()["job"]["id"] == again.json()["job"]["id"]
        is_problem(await http.post("/api/jobs", json={"text": "b"}, headers=key), 409, "idempotency_mismatch")

    async def test_many_at_once_make_one_job(self, http: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(
            *(http.post("/api/jobs", json={"text": "a"}, headers={"Idempotency-Key": "k"}) for _ in range(10))
        )
        assert len({answer.json()["job"]["id"] for answer in answers}) == 1
        assert len((await http.get("/api/jobs")).json()["items"]) == 1

    @pytest.mark.parametrize("key", ["", "x" * 256, "caf\u00e9", "a\tb"])
    async def test_a_key_is_printable_and_short(self, http: httpx.AsyncClient, key: str) -> None:
        headers = [(b"Idempotency-Key", key.encode("latin-1"))]
        is_problem(await http.post("/api/jobs", json={"text": "a"}, headers=headers), 422, "invalid")


class TestCancel:
    async def test_a_waiting_job_is_cancelled_in_the_call(self, http: httpx.AsyncClient) -> None:
        job = (await submit(http))["job"]
        answer = await http.post(f"/api/jobs/{job['id']}/cancel")
        assert answer.status_code == 202
        command = answer.json()["command"]
        assert set(command) == {"id", "kind", "state", "requested_at", "accepted_at", "done_at"}
        assert (command["kind"], command["state"]) == ("cancel", "done")
        assert (await http.get(f"/api/jobs/{job['id']}")).json()["state"] == "cancelled"
        stored = await http.get(f"/api/jobs/{job['id']}/commands/{command['id']}")
        assert stored.json() == command

    async def test_a_running_job_is_asked(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job = (await submit(http))["job"]
        run = await hand.start()
        command = (await http.post(f"/api/jobs/{job['id']}/cancel")).json()["command"]
        assert command["state"] == "requested"
        again = (await http.post(f"/api/jobs/{job['id']}/cancel")).json()["command"]
        assert again["id"] == command["id"]
        assert (await http.get(f"/api/jobs/{job['id']}")).json()["cancel_requested"] is True
        await run.finish("cancelled", "cancelled")
        late = (await http.post(f"/api/jobs/{job['id']}/cancel")).json()["command"]
        assert late["state"] in ("done", "already_finished") and late["done_at"]


class TestThreads:
    async def test_a_thread_is_made_renamed_listed_and_deleted(self, http: httpx.AsyncClient) -> None:
        made = await http.post("/api/threads", json={"title": "first"})
        assert made.status_code == 201
        thread = made.json()
        renamed = await http.patch(f"/api/threads/{thread['id']}", json={"title": "second"})
        assert renamed.json()["title"] == "second"
        other = (await http.post("/api/threads")).json()
        page = (await http.get("/api/threads", params={"limit": "1"})).json()
        assert [t["id"] for t in page["items"]] == [other["id"]]
        page = (await http.get("/api/threads", params={"limit": "1", "after": page["next"]})).json()
        assert [t["id"] for t in page["items"]] == [thread["id"]]
        assert page["next"] is None
        assert (await http.delete(f"/api/threads/{thread['id']}")).status_code == 204
        is_problem(await http.get(f"/api/threads/{thread['id']}"), 404, "not_found")

    async def test_a_busy_thread_is_not_deleted(self, http: httpx.AsyncClient) -> None:
        thread = (await submit(http))["job"]["thread_id"]
        is_problem(await http.delete(f"/api/threads/{thread}"), 409, "thread_busy")

    async def test_messages_are_paged_in_order(self, http: httpx.AsyncClient) -> None:
        thread = (await submit(http, "0"))["job"]["thread_id"]
        for n in range(1, 4):
            await submit(http, str(n), thread_id=thread, on_busy="enqueue")
        page = (await http.get(f"/api/threads/{thread}/messages", params={"limit": "3"})).json()
        rest = await http.get(f"/api/threads/{thread}/messages", params={"after": page["next"]})
        assert [m["text"] for m in page["items"] + rest.json()["items"]] == ["0", "1", "2", "3"]

    async def test_agents_are_those_that_live_workers_serve(self, http: httpx.AsyncClient) -> None:
        agents = (await http.get("/api/agents")).json()["items"]
        assert agents == [{"name": "demo", "lane": "normal", "timeout_seconds": 300.0}]


class TestEventsAsJson:
    async def test_pages_join_without_gap(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job = (await submit(http))["job"]
        run = await hand.start()
        await run.say(*(f"{n} " for n in range(20)))
        await run.finish()
        seen: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while True:
            page = (await http.get(f"/api/jobs/{job['id']}/events", params={"limit": "5", **after})).json()
            seen += page["items"]
            assert len(page["items"]) <= 5
            if page["next"] is None:
                break
            assert page["next"].startswith(f"{run.execution_id}:")
            after = {"after": page["next"]}
        assert [event["seq"] for event in seen] == list(range(1, 23))
        assert set(seen[0]) == {"job_id", "execution_id", "epoch", "seq", "type", "data"}
        assert seen[-1]["type"] == "run.completed"
        end = await http.get(f"/api/jobs/{job['id']}/events", params={"after": f"{run.execution_id}:22:end"})
        assert end.json() == {"items": [], "next": None}

    async def test_data_is_passed_on_as_it_was_stored(self, http: httpx.AsyncClient, hand: Hand) -> None:
        from corevo.contracts import Event

        job = (await submit(http))["job"]
        run = await hand.start()
        odd = '{"n": 1.0,  "e":1e5,"s":"\\u00e9 \u4e2d\\n", "dup":1,"dup":2}'
        await run.append([Event(2, "custom.kind", odd)])
        text = (await http.get(f"/api/jobs/{job['id']}/events")).text
        assert odd in text


class TestWrongIds:
    @pytest.mark.parametrize(
        "missing", [MISSING, "nonsense", "0", "%00", MISSING.replace("-", ""), "{" + MISSING + "}"]
    )
    async def test_every_route_answers_404(self, http: httpx.AsyncClient, missing: str) -> None:
        mine = (await submit(http))["job"]["id"]
        for method, path in [
            ("GET", f"/api/jobs/{missing}"),
            ("GET", f"/api/jobs/{missing}/events"),
            ("POST", f"/api/jobs/{missing}/cancel"),
            ("GET", f"/api/jobs/{missing}/commands/{MISSING}"),
            ("GET", f"/api/jobs/{mine}/commands/{missing}"),
            ("GET", f"/api/threads/{missing}"),
            ("GET", f"/api/threads/{missing}/messages"),
            ("DELETE", f"/api/threads/{missing}"),
            ("GET", f"/api/jobs?thread_id={missing}"),
        ]:
            answer = await http.request(method, path)
            if path.startswith("/api/jobs?") and missing == MISSING:
                assert answer.json()["items"] == []
            else:
                is_problem(answer, 404, "not_found")
        is_problem(await http.patch(f"/api/threads/{missing}", json={"title": "x"}), 404, "not_found")
        if "%" not in missing:
            is_problem(await http.post("/api/jobs", json={"text": "x", "thread_id": missing}), 404, "not_found")

    async def test_a_foreign_id_answers_as_a_missing_one(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job = (await submit(http))["job"]
        other = uuid4()
        await hand.db.fetch(
            "insert into corevo.accounts (id, name, created_at) values ($1, 'other', corevo.now())", other
        )
        await hand.db.fetch("update corevo.threads set account_id = $1", other)
        await hand.db.fetch("update corevo.jobs set account_id = $1", other)
        for path in (
            "/api/jobs/{}",
            "/api/jobs/{}/events",
            "/api/jobs/{}/commands/" + MISSING,
        ):
            theirs = is_problem(await http.get(path.format(job["id"])), 404, "not_found")
            nobodys = is_problem(await http.get(path.format(MISSING)), 404, "not_found")
            assert theirs["detail"] == nobodys["detail"]
        is_problem(await http.post(f"/api/jobs/{job['id']}/cancel"), 404, "not_found")
        is_problem(await http.post("/api/jobs", json={"text": "x", "thread_id": job["thread_id"]}), 404, "not_found")
        assert (await http.get("/api/jobs")).json()["items"] == []

    async def test_routes_that_are_not_there(self, http: httpx.AsyncClient) -> None:
        for path in ("/api/auth/login", "/api/me", "/api/keys", "/api/nothing", "/x", "/api/jobs/"):
            is_problem(await http.get(path), 404, "not_found")
            is_problem(await http.post(path, json={}), 404, "not_found")
        refused = await http.put("/api/jobs", json={})
        is_problem(refused, 405, "method_not_allowed")

    @pytest.mark.parametrize("after", ["x", "", "AAAA", "\u00e9", "x" * 500, MISSING + ":1", MISSING + ":end"])
    async def test_a_bad_cursor_is_said_to_be_one(self, http: httpx.AsyncClient, after: str) -> None:
        job = (await submit(http))["job"]
        for path in ("/api/jobs", "/api/threads", f"/api/threads/{job['thread_id']}/messages"):
            is_problem(await http.get(path, params={"after": after}), 400, "bad_cursor")
        is_problem(await http.get(f"/api/jobs/{job['id']}/events", params={"after": after}), 400, "bad_cursor")

    @pytest.mark.parametrize("limit", ["0", "-1", "101", "x", "1e1", "", "9" * 30, "\u0663"])
    async def test_a_bad_limit_is_named(self, http: httpx.AsyncClient, limit: str) -> None:
        assert "limit" in is_problem(await http.get("/api/jobs", params={"limit": limit}), 422, "invalid")["detail"]


class TestWhoCalls:
    async def test_a_foreign_host_name_is_refused(self, http: httpx.AsyncClient) -> None:
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", ""):
            is_problem(await http.get("/api/threads", headers={"Host": host}), 403, "forbidden_host")
            is_problem(await http.get("/", headers={"Host": host}), 403, "forbidden_host")
        for host in ("localhost", "localhost:9", "127.0.0.1", "127.9.9.9", "[::1]:80", "a.localhost"):
            assert (await http.get("/api/threads", headers={"Host": host})).status_code == 200

    async def test_an_origin_must_be_our_own(self, http: httpx.AsyncClient, web: str) -> None:
        for origin in ("https://evil.example", "null", web.replace("127.0.0.1", "localhost"), "http://127.0.0.1"):
            refused = await http.post("/api/jobs", json={"text": "x"}, headers={"Origin": origin})
            is_problem(refused, 403, "forbidden_origin")
        own = await http.post("/api/jobs", json={"text": "x"}, headers={"Origin": web})
        assert own.status_code == 202


class TestHealth:
    async def test_the_page_may_load_nothing_from_elsewhere(self, http: httpx.AsyncClient) -> None:
        page = await http.get("/")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        found = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
        assert len(found) >= 3
        for path in found:
            file = await http.get(path)
            assert file.status_code == 200 and "immutable" in file.headers["cache-control"]

    async def test_metrics_are_labelled_by_route(self, http: httpx.AsyncClient) -> None:
        await http.get('/api/jobs/x"} evil 1')
        await http.get("/no/such/path")
        text = (await http.get("/metrics")).text
        assert 'route="/api/jobs/{job_id}"' in text
        assert 'route="unmatched"' in text
        assert "evil" not in text and "/no/such/path" not in text

    async def test_it_is_ready_and_says_how_it_listens(self, http: httpx.AsyncClient) -> None:
        answer = await http.get("/readyz")
        assert answer.status_code == 200
        assert answer.json()["listen"] in ("healthy", "polling")


async def test_the_end_of_a_job_is_a_cursor_only_where_no_event_ended_it(database: str) -> None:
    async with (
        role(database, "web", "--port", "0") as gateway,
        role(database, "worker", "tests/agents.py") as worker,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        job = (await http.post("/api/jobs", json={"text": "x", "agent": "echo"})).json()["job"]["id"]

        async def ended() -> bool:
            return bool((await http.get(f"/api/jobs/{job}")).json()["finished_at"])

        await eventually(ended)
        answer = await http.get(f"/api/jobs/{job}/events", params={"after": f"{job}:end"})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor")
        await worker.stop()
        job = (await http.post("/api/jobs", json={"text": "x", "agent": "echo"})).json()["job"]["id"]
        answer = await http.get(f"/api/jobs/{job}/events", params={"after": f"{job}:end"})
        assert answer.status_code == 400
        await http.post(f"/api/jobs/{job}/cancel")
        answer = await http.get(f"/api/jobs/{job}/events", params={"after": f"{job}:end"})
        assert (answer.status_code, answer.json()) == (200, {"items": [], "next": None})


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00"])
async def test_a_list_cursor_made_by_hand_is_refused(database: str, at: str) -> None:
    text = base64.urlsafe_b64encode(f"{at}|{uuid4()}".encode()).decode().rstrip("=")
    async with role(database, "web", "--port", "0") as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        for path in ("/api/jobs", "/api/threads"):
            answer = await http.get(path, params={"after": text})
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor")
