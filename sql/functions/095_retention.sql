-- Retention: days of events go whole, small rows go in batches.

-- Day partitions that may be removed: older than p_days, and no execution of theirs is open.
-- Removal itself is a top-level statement (DETACH … CONCURRENTLY, then DROP): the one transition that is no function.
-- state: attached; pending, a DETACH that gave up waiting for a reader and wants FINALIZE; detached, only the DROP is left.
create or replace function corevo.old_partitions(p_days int)
returns table (
  name text,
  state text
) language sql stable as $$
  select c.relname::text,
         case when i.inhdetachpending then 'pending' when i.inhrelid is not null then 'attached' else 'detached' end
    from pg_class c
    left join pg_inherits i on i.inhrelid = c.oid
    where c.relnamespace = 'corevo'::regnamespace and c.relkind = 'r' and c.relname ~ '^events_\d{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') < (corevo.now() at time zone 'utc')::date - p_days
      and not exists (
        select 1 from corevo.executions x
          where x.ended_at is null
            and x.id >= corevo.uuid7_floor(to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp at time zone 'utc')
            and x.id < corevo.uuid7_floor((to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'utc'))
    order by c.relname
$$;

-- Deletes events of ended executions older than p_days, row by row, for a role that may not change tables.
create or replace function corevo.prune_events(
  p_days int,
  p_limit int
) returns int language plpgsql as $$
declare
  v_count int;
begin
  delete from corevo.events e
    where (e.execution_id, e.seq) in (
      select o.execution_id, o.seq from corevo.events o
        where o.execution_id < corevo.uuid7_floor(date_trunc('day', corevo.now() at time zone 'utc') at time zone 'utc'
                                                  - p_days * interval '1 day')
          and not exists (select 1 from corevo.executions x where x.id = o.execution_id and x.ended_at is null)
        order by o.execution_id, o.seq limit p_limit);
  get diagnostics v_count = row_count;
  return v_count;
end $$;

-- Deletes what nobody asks for any more: idempotency keys after a day, dead workers after a day, stalls after a week.
-- Workers that an unended job names stay.
create or replace function corevo.prune_rows(p_limit int)
returns int language plpgsql as $$
declare
  v_now timestamptz := corevo.now();
  v_count int;
  v_total int := 0;
begin
  delete from corevo.idempotency i
    where (i.account_id, i.key) in (
      select o.account_id, o.key from corevo.idempotency o
        where o.created_at < v_now - interval '24 hours' limit p_limit);
  get diagnostics v_count = row_count; v_total := v_total + v_count;
  delete from corevo.workers w
    where w.id in (
      select o.id from corevo.workers o
        where o.fenced_at < v_now - interval '24 hours'
          and not exists (select 1 from corevo.jobs j where j.worker_id = o.id and j.state in ('queued', 'running'))
        limit p_limit);
  get diagnostics v_count = row_count; v_total := v_total + v_count;
  delete from corevo.stalls s where s.id in (select o.id from corevo.stalls o where o.at < v_now - interval '7 days' limit p_limit);
  get diagnostics v_count = row_count;
  return v_total + v_count;
end $$;
