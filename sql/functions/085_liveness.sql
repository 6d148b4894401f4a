-- What a pulse says when all is not well.

-- Notes why a worker withholds its heartbeat, so that its jobs end with the true reason. A beat clears it.
create or replace function corevo.report_trouble(
  p_worker uuid,
  p_trouble text
) returns void language sql as $$
  update corevo.workers w set trouble = p_trouble
    where w.id = p_worker and w.fenced_at is null and w.trouble is distinct from p_trouble
$$;

-- Notes one stall of an event loop, for people with psql: select from corevo.stalls.
create or replace function corevo.record_stall(
  p_worker uuid,
  p_name text,
  p_seconds double precision,
  p_place text,
  p_task text,
  p_cpu_seconds double precision,
  p_gc_seconds double precision
) returns void language plpgsql as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  insert into corevo.stalls (worker_id, worker_name, at, seconds, place, task, cpu_seconds, gc_seconds)
    values (p_worker, p_name, corevo.now(), p_seconds, left(p_place, 500), left(p_task, 200), p_cpu_seconds, p_gc_seconds);
end $$;

-- Ends database sessions of Corevo whose client is frozen in the middle of a reply, with a transaction open for longer
-- than p_seconds: they hold their row locks, and no time-out of the server ends them. Real time, not the protocol's:
-- these are facts of the server.
create or replace function corevo.end_stuck_backends(p_seconds double precision)
returns int language sql volatile as $$
  select count(*)::int from (
    select pg_terminate_backend(a.pid) as ended from pg_stat_activity a
      where a.datname = current_database() and a.application_name like 'corevo%' and a.pid <> pg_backend_pid()
        and a.wait_event_type = 'Client' and a.wait_event = 'ClientWrite' and a.usename = current_user
        and a.xact_start < clock_timestamp() - p_seconds * interval '1 second'
  ) e where e.ended
$$;

-- Live workers by their last beats, and the greatest event loop lag among them.
create or replace function corevo.fleet(
  out workers int,
  out lag_ms double precision
) language sql stable as $$
  select count(*)::int, coalesce(max(w.lag_ms), 0)
    from corevo.workers w where w.fenced_at is null and w.beat_at > corevo.now() - interval '60 seconds'
$$;
