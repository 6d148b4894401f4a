-- The event path: append, and the reads that serve history.
-- What reads events does it without sequential scans: on a day that was analyzed while it was empty the planner takes one,
-- and that plan stays cached when the day has begun. (The same goes for the endings.)

-- Stores what a worker's runs have said: each run once, with its first seq (at least 2), its events in four arrays.
-- Locks:   the matching executions (by id), skipping locked ones. It never waits, and one run never fails another.
-- Raises:  RV003 bad_call (a run twice in a batch).
-- Returns: one row a run:
--            stored   its events are there
--            gap      its predecessor is not (the database lost it in a crash): send again from stored_seq + 1
--            busy     an ending holds it: send again
--            fenced   another token, or ended; ended_by says by what
--          insert_lsn, flush_lsn: positions of the server's log. A batch that was answered before this call began
--          is safe once a flush_lsn at or above this insert_lsn has been seen (this insert_lsn lies below its own commit).
-- Why this shape: with a check by EXISTS and ON CONFLICT instead of the lock, a late writer got above the terminal
-- event; the predecessor is a scalar sub-query with a limit because as EXISTS it became a hash join over the table.
create or replace function corevo.append_events(
  p_executions uuid[],
  p_tokens uuid[],
  p_first_seqs bigint[],
  e_executions uuid[],
  e_seqs bigint[],
  e_types text[],
  e_data text[]
) returns table (
  execution_id uuid,
  result text,
  ended_by text,
  stored_seq bigint,
  insert_lsn bigint,
  flush_lsn bigint
) language plpgsql set enable_seqscan to off as $$
#variable_conflict use_column
declare
  v_locked uuid[];
  v_ready uuid[];
begin
  if (select count(distinct r.id) from unnest(p_executions) r (id)) <> cardinality(p_executions) then
    perform corevo.refuse('RV003', 'bad_call', 'an execution stands twice in one batch');
  end if;
  perform set_config('synchronous_commit', 'off', true);
  v_locked := array(
    select x.id from corevo.executions x
      join unnest(p_executions, p_tokens) r (id, token) on r.id = x.id and r.token = x.token
      where x.ended_at is null
      order by x.id
      for no key update of x skip locked);
  v_ready := array(
    select r.id from unnest(p_executions, p_first_seqs) r (id, first_seq)
      where r.id = any (v_locked) and r.first_seq >= 2
        and (select true from corevo.events e where e.execution_id = r.id and e.seq = r.first_seq - 1 limit 1));
  insert into corevo.events (execution_id, seq, type, data)
    select e.id, e.seq, e.type, e.data::json
      from unnest(e_executions, e_seqs, e_types, e_data) e (id, seq, type, data)
      where e.id = any (v_ready)
    on conflict do nothing;
  insert_lsn := (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint;
  flush_lsn := (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint;
  return query
    select r.id,
           case
             when r.id = any (v_ready) then 'stored'
             when r.id = any (v_locked) then 'gap'
             when x.token = r.token and x.ended_at is null then 'busy'
             else 'fenced'
           end,
           case when x.id is null then 'gone' when x.token <> r.token then 'token' else x.outcome end,
           case when r.id = any (v_locked) and not r.id = any (v_ready)
             then (select max(e.seq) from corevo.events e where e.execution_id = r.id) end,
           insert_lsn, flush_lsn
      from unnest(p_executions, p_tokens) r (id, token)
      left join corevo.executions x on x.id = r.id;
end $$;

-- Stored events of one job after a position, in order of (epoch, seq), at most p_limit rows and about p_limit_bytes.
-- The owner was checked when the stream was opened.
create or replace function corevo.read_events(
  p_job uuid,
  p_epoch int,
  p_seq bigint,
  p_limit int,
  p_limit_bytes int
) returns table (
  execution_id uuid,
  epoch int,
  seq bigint,
  type text,
  data text
) language plpgsql stable set enable_seqscan to off as $$
#variable_conflict use_column
declare
  v_left int := p_limit;
  v_bytes bigint := 0;
begin
  for execution_id, epoch in
    select x.id, x.epoch from corevo.executions x where x.job_id = p_job and x.epoch >= p_epoch order by x.epoch
  loop
    for seq, type, data in
      select e.seq, e.type, e.data::text from corevo.events e
        where e.execution_id = read_events.execution_id and e.seq > case when epoch = p_epoch then p_seq else 0 end
        order by e.seq limit v_left
    loop
      return next;
      v_left := v_left - 1;
      v_bytes := v_bytes + octet_length(data);
      if v_left <= 0 or v_bytes >= p_limit_bytes then
        return;
      end if;
    end loop;
  end loop;
end $$;

-- Where the streams of these jobs stand: one statement for everything a gateway watches.
-- last_*: the newest execution, with its end; a terminal event with will_retry does not end the stream.
create or replace function corevo.stream_heads(p_jobs uuid[])
returns table (
  job_id uuid,
  state text,
  cancel_requested boolean,
  last_execution_id uuid,
  last_epoch int,
  last_seq bigint,
  last_ended boolean,
  last_will_retry boolean
) language sql stable set enable_seqscan to off as $$
  select j.id, j.state, j.cancel_requested_at is not null, x.id, x.epoch,
         (select max(e.seq) from corevo.events e where e.execution_id = x.id),
         x.ended_at is not null, coalesce(x.will_retry, false)
    from corevo.jobs j
    left join lateral (
      select x.id, x.epoch, x.ended_at, x.will_retry from corevo.executions x
        where x.job_id = j.id order by x.epoch desc limit 1
    ) x on true
    where j.id = any (p_jobs)
$$;

-- The epoch of an execution, if it is one of this job's: turns a cursor into a position.
create or replace function corevo.execution_epoch(
  p_job uuid,
  p_execution uuid
) returns int language sql stable as $$
  select x.epoch from corevo.executions x where x.id = p_execution and x.job_id = p_job
$$;

-- Positions of the server's log now, as append_events returns them: a worker that has nothing to append asks
-- here whether what it appended before is safe.
create or replace function corevo.log_position(
  out insert_lsn bigint,
  out flush_lsn bigint
) language sql volatile as $$
  select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint
$$;
