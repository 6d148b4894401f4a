-- Workers: register, beat, drain, retire; the agents they serve.

-- Makes the row of a new worker incarnation and registers its agents.
-- Raises: RV005 incarnation_used: a worker id is fresh at every boot, and a fenced one never comes back.
create or replace function corevo.register_worker(
  p_worker uuid,
  p_name text,
  p_version text,
  p_agents text[],
  p_lanes text[],
  p_timeouts double precision[],
  p_retry_safe boolean[],
  p_max_attempts int[]
) returns void language plpgsql as $$
declare
  v_now timestamptz := corevo.now();
begin
  -- in order of name, so that two workers that register at once cannot wait for each other
  insert into corevo.agents as a (name, lane, timeout_seconds, retry_safe, max_attempts, registered_at)
    select r.name, r.lane, r.timeout_seconds, r.retry_safe, r.max_attempts, v_now
      from unnest(p_agents, p_lanes, p_timeouts, p_retry_safe, p_max_attempts) r (name, lane, timeout_seconds, retry_safe, max_attempts)
      order by r.name
    on conflict (name) do update
      set lane = excluded.lane, timeout_seconds = excluded.timeout_seconds, retry_safe = excluded.retry_safe,
          max_attempts = excluded.max_attempts, registered_at = excluded.registered_at
      where (a.lane, a.timeout_seconds, a.retry_safe, a.max_attempts)
            is distinct from (excluded.lane, excluded.timeout_seconds, excluded.retry_safe, excluded.max_attempts);
  insert into corevo.workers (id, name, agents, version, started_at, beat_at)
    values (p_worker, p_name, p_agents, p_version, v_now, v_now)
    on conflict do nothing;
  if not found then
    perform corevo.refuse('RV005', 'incarnation_used', 'a worker id serves one boot');
  end if;
end $$;

-- Says that a worker can make progress. Updates exactly one row, and only of a worker that is not fenced.
-- Raises:  RV004 worker_fenced, also when the row is gone: never inserted again.
-- Returns: what the database says the worker owns.
create or replace function corevo.beat(
  p_worker uuid,
  p_lag_ms double precision
) returns table (
  job_id uuid,
  epoch int,
  token uuid,
  claim_request uuid,
  execution_id uuid,
  has_commands boolean
) language plpgsql as $$
#variable_conflict use_column
begin
  perform set_config('synchronous_commit', 'off', true);
  update corevo.workers w set beat_at = corevo.now(), lag_ms = p_lag_ms, trouble = null
    where w.id = p_worker and w.fenced_at is null;
  if not found then
    perform corevo.refuse('RV004', 'worker_fenced', 'this worker was declared dead');
  end if;
  return query
    select j.id, j.epoch, j.token, j.claim_request, j.execution_id,
           exists (select 1 from corevo.commands c where c.job_id = j.id and c.state in ('requested', 'accepted'))
      from corevo.jobs j
      where j.worker_id = p_worker and j.state in ('queued', 'running');
end $$;

-- Marks a worker as draining: gateways and psql see that it takes no more.
create or replace function corevo.drain_worker(p_worker uuid)
returns void language sql as $$
  update corevo.workers w set draining_at = coalesce(w.draining_at, corevo.now()) where w.id = p_worker
$$;

-- The last word of a worker that stops by itself: fenced from here on, so that a sweep need not wait for its TTL.
create or replace function corevo.retire_worker(p_worker uuid)
returns void language sql as $$
  update corevo.workers w
    set stopped_at = corevo.now(), fenced_at = coalesce(w.fenced_at, corevo.now())
    where w.id = p_worker
$$;

-- Agents that some worker has served within the last p_seconds: beaten, whether or not it was fenced since.
create or replace function corevo.agents_served(p_seconds double precision)
returns table (
  name text,
  lane text,
  timeout_seconds double precision
) language sql stable as $$
  select a.name, a.lane, a.timeout_seconds from corevo.agents a
    where exists (
      select 1 from corevo.workers w
        where a.name = any (w.agents) and w.beat_at > corevo.now() - p_seconds * interval '1 second')
$$;
