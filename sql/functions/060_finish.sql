-- The worker's only ending.

-- Finishes executions, and with each its job: one transaction for the whole batch, one outcome a row.
-- Carries each run's tail of events that were not acknowledged; those already stored are skipped.
-- Locks:   [days] → threads (by id) → all unended jobs of those threads (by id) → executions (by id) → [hold] → commands.
-- Raises:  RV003 bad_call (a run twice in a batch).
-- Returns: one row a run:
--            ended    with its terminal event, and the next job that became current
--            retry    the execution ended, the job is queued again
--            gap      the tail begins above the stored end: send from stored_seq + 1
--            fenced   another token, or ended before; ended_by says by what
create or replace function corevo.finish(
  p_executions uuid[],
  p_tokens uuid[],
  p_outcomes text[],
  p_reasons text[],
  p_messages text[],
  e_executions uuid[],
  e_seqs bigint[],
  e_types text[],
  e_data text[]
) returns table (
  execution_id uuid,
  result text,
  ended_by text,
  stored_seq bigint,
  job_id uuid,
  terminal_seq bigint,
  terminal_data text,
  promoted uuid
) language plpgsql set enable_seqscan to off as $$
#variable_conflict use_column
declare
  v_jobs uuid[];
  v_threads uuid[];
  v_now timestamptz;
  v_run record;
  v_job corevo.jobs;
  v_execution corevo.executions;
  v_first bigint;
  v_retry boolean;
  v_text text;
begin
  if (select count(distinct r.id) from unnest(p_executions) r (id)) <> cardinality(p_executions) then
    perform corevo.refuse('RV003', 'bad_call', 'an execution stands twice in one batch');
  end if;
  v_jobs := array(select x.job_id from corevo.executions x where x.id = any (p_executions));
  v_threads := array(select distinct j.thread_id from corevo.jobs j where j.id = any (v_jobs));
  perform 1 from corevo.threads t where t.id = any (v_threads) order by t.id for no key update;
  perform 1 from corevo.jobs j
    where j.thread_id = any (v_threads) and j.state in ('queued', 'running')
    order by j.id for no key update;
  perform 1 from corevo.executions x where x.id = any (p_executions) order by x.id for no key update;
  v_now := corevo.now();
  for v_run in
    select r.id, r.token, r.outcome, r.reason, r.message
      from unnest(p_executions, p_tokens, p_outcomes, p_reasons, p_messages) r (id, token, outcome, reason, message)
  loop
    execution_id := v_run.id; ended_by := null; terminal_seq := null; terminal_data := null; promoted := null;
    select x.* into v_execution from corevo.executions x where x.id = v_run.id;
    job_id := v_execution.job_id;
    if v_execution.id is null or v_execution.token <> v_run.token or v_execution.ended_at is not null then
      result := 'fenced';
      ended_by := case when v_execution.id is null then 'gone' when v_execution.token <> v_run.token then 'token'
                       else v_execution.outcome end;
      return next;
      continue;
    end if;
    select coalesce(max(e.seq), 0) into stored_seq from corevo.events e where e.execution_id = v_run.id;
    select min(e.seq) into v_first from unnest(e_executions, e_seqs) e (id, seq) where e.id = v_run.id;
    if v_first > stored_seq + 1 then
      result := 'gap';
      return next;
      continue;
    end if;
    insert into corevo.events (execution_id, seq, type, data)
      select e.id, e.seq, e.type, e.data::json
        from unnest(e_executions, e_seqs, e_types, e_data) e (id, seq, type, data)
        where e.id = v_run.id
      on conflict do nothing;
    select j.* into v_job from corevo.jobs j where j.id = v_execution.job_id;
    v_retry := v_run.outcome in ('failed', 'lost') and v_job.attempts < v_job.max_attempts and v_job.cancel_requested_at is null;
    select e.terminal_seq, e.terminal_data, e.text_so_far into terminal_seq, terminal_data, v_text
      from corevo.end_execution(v_run.id, v_run.outcome, v_run.reason, v_run.message, v_retry, v_now) e;
    stored_seq := terminal_seq;
    if v_retry then
      perform corevo.requeue_job(v_job, v_now);
      result := 'retry';
    else
      promoted := corevo.end_job(
        v_job, v_run.outcome,
        case when v_run.outcome <> 'completed' then v_run.reason end,
        case when v_run.outcome <> 'completed' then v_run.message end,
        v_text, v_now);
      result := 'ended';
    end if;
    return next;
  end loop;
end $$;
