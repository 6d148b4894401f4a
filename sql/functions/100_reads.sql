-- What people read: accounts, threads, messages, jobs. Every read names the account: a foreign row is a missing row.

-- The one account of COREVO_AUTH=off, a real row.
create or replace function corevo.local_account()
returns uuid language plpgsql as $$
declare
  v_id constant uuid := '00000000-0000-7000-8000-000000000001';
begin
  insert into corevo.accounts (id, name, created_at) values (v_id, 'local', corevo.now()) on conflict do nothing;
  return v_id;
end $$;

-- A job as the API shows it. queue_position counts the claimable jobs of its lane that are before it, itself included;
-- null when it does not wait there.
create or replace function corevo.job_rows(p_jobs uuid[])
returns table (
  id uuid,
  account_id uuid,
  thread_id uuid,
  agent text,
  lane text,
  state text,
  epoch int,
  execution_id uuid,
  queue_position bigint,
  created_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  error_code text,
  error_message text,
  cancel_requested boolean
) language sql stable as $$
  select j.id, j.account_id, j.thread_id, j.agent, j.lane, j.state, j.epoch, j.execution_id,
         case when j.state = 'queued' and j.blocked_by is null and j.worker_id is null then
           (select count(*) from (
              select 1 from corevo.jobs q
                where q.lane = j.lane and q.state = 'queued' and q.blocked_by is null and q.worker_id is null
                  and (q.ready_at, q.id) <= (j.ready_at, j.id)
                limit 1000) q)
         end,
         j.created_at, j.started_at, j.finished_at, j.error_code, j.error_message, j.cancel_requested_at is not null
    from corevo.jobs j where j.id = any (p_jobs)
$$;

create or replace function corevo.read_job(
  p_account uuid,
  p_job uuid
) returns table (
  id uuid, account_id uuid, thread_id uuid, agent text, lane text, state text, epoch int, execution_id uuid, queue_position bigint,
  created_at timestamptz, started_at timestamptz, finished_at timestamptz, error_code text, error_message text, cancel_requested boolean
) language sql stable as $$
  select r.id, r.account_id, r.thread_id, r.agent, r.lane, r.state, r.epoch, r.execution_id, r.queue_position,
         r.created_at, r.started_at, r.finished_at, r.error_code, r.error_message, r.cancel_requested
    from corevo.job_rows(array[p_job]) r where r.account_id = p_account
$$;

-- An account's jobs, newest first, after a (created_at, id) when given; of one thread when given.
create or replace function corevo.list_jobs(
  p_account uuid,
  p_thread uuid,
  p_before_at timestamptz,
  p_before_id uuid,
  p_limit int
) returns table (
  id uuid, account_id uuid, thread_id uuid, agent text, lane text, state text, epoch int, execution_id uuid, queue_position bigint,
  created_at timestamptz, started_at timestamptz, finished_at timestamptz, error_code text, error_message text, cancel_requested boolean
) language sql stable as $$
  select r.id, r.account_id, r.thread_id, r.agent, r.lane, r.state, r.epoch, r.execution_id, r.queue_position,
         r.created_at, r.started_at, r.finished_at, r.error_code, r.error_message, r.cancel_requested
    from corevo.job_rows(array(
      select j.id from corevo.jobs j
        where j.account_id = p_account and (p_thread is null or j.thread_id = p_thread)
          and (p_before_id is null or (j.created_at, j.id) < (p_before_at, p_before_id))
        order by j.created_at desc, j.id desc limit p_limit)) r
    order by r.created_at desc, r.id desc
$$;

create or replace function corevo.create_thread(
  p_account uuid,
  p_title text
) returns uuid language plpgsql as $$
declare
  v_now timestamptz := corevo.now();
  v_id uuid := corevo.uuid7(v_now);
begin
  insert into corevo.threads (id, account_id, title, created_at, updated_at) values (v_id, p_account, p_title, v_now, v_now);
  return v_id;
end $$;

-- A thread as the API shows it. `unread`: a run of it ended, and no page has shown that.
create or replace function corevo.thread_view(
  p_account uuid,
  p_thread uuid
) returns table (
  id uuid, title text, agent text, current_job_id uuid, current_state text, unread boolean, created_at timestamptz,
  updated_at timestamptz
) language sql stable as $$
  select t.id, t.title, t.agent, t.current_job_id, j.state, coalesce(t.current_job_id is null and t.updated_at > t.seen_at, false),
         t.created_at, t.updated_at
    from corevo.threads t left join corevo.jobs j on j.id = t.current_job_id
    where t.id = p_thread and t.account_id = p_account
$$;

-- An account's threads, newest first, after an (updated_at, id) when given; with these words in the title when given.
create or replace function corevo.find_threads(
  p_account uuid,
  p_words text,
  p_before_at timestamptz,
  p_before_id uuid,
  p_limit int
) returns table (
  id uuid, title text, agent text, current_job_id uuid, current_state text, unread boolean, created_at timestamptz,
  updated_at timestamptz
) language sql stable as $$
  select t.id, t.title, t.agent, t.current_job_id, j.state, coalesce(t.current_job_id is null and t.updated_at > t.seen_at, false),
         t.created_at, t.updated_at
    from (
      select t.id, t.title, t.agent, t.current_job_id, t.seen_at, t.created_at, t.updated_at from corevo.threads t
        where t.account_id = p_account and (p_before_id is null or (t.updated_at, t.id) < (p_before_at, p_before_id))
          and (p_words is null or position(lower(p_words) in lower(t.title)) > 0)
        order by t.updated_at desc, t.id desc limit p_limit
    ) t
    left join corevo.jobs j on j.id = t.current_job_id
    order by t.updated_at desc, t.id desc
$$;

-- A title for a thread that nobody named: the first line of its first message, without markup, cut between two words.
create or replace function corevo.title_of(p_text text)
returns text language plpgsql immutable as $$
declare
  v_line text := coalesce(substring(left(p_text, 2000) from '\S[^\n]*'), '');
  v_title text := btrim(regexp_replace(regexp_replace(v_line, '^[#>*`\s-]+', ''), '\s+', ' ', 'g'));
begin
  if v_title = '' then
    v_title := btrim(v_line);
  end if;
  if length(v_title) <= 60 then
    return v_title;
  end if;
  v_line := regexp_replace(left(v_title, 60), '\s\S*$', '');
  return case when length(v_line) >= 30 then v_line else left(v_title, 60) end || '…';
end $$;

-- Raises: RV101 not_found.
create or replace function corevo.rename_thread(
  p_account uuid,
  p_thread uuid,
  p_title text
) returns void language plpgsql as $$
begin
  update corevo.threads t set title = p_title where t.id = p_thread and t.account_id = p_account;
  if not found then
    perform corevo.refuse('RV101', 'not_found', 'no such thread');
  end if;
end $$;

-- Notes that a thread was seen as it stands, or that it shall count as unread.
-- Raises: RV101 not_found.
create or replace function corevo.mark_thread(
  p_account uuid,
  p_thread uuid,
  p_unread boolean
) returns void language plpgsql as $$
begin
  update corevo.threads t set seen_at = case when p_unread then '-infinity' else t.updated_at end
    where t.id = p_thread and t.account_id = p_account;
  if not found then
    perform corevo.refuse('RV101', 'not_found', 'no such thread');
  end if;
end $$;

-- Deletes a thread with everything in it.
-- Locks:  account (so that no admission is under way in it) → thread.
-- Raises: RV101 not_found · RV105 thread_busy.
create or replace function corevo.delete_thread(
  p_account uuid,
  p_thread uuid
) returns void language plpgsql as $$
declare
  v_thread corevo.threads;
  v_jobs uuid[];
begin
  perform 1 from corevo.accounts a where a.id = p_account for no key update;
  perform 1 from corevo.threads t where t.id = p_thread and t.account_id = p_account for update;
  select t.* into v_thread from corevo.threads t where t.id = p_thread and t.account_id = p_account;
  if not found then
    perform corevo.refuse('RV101', 'not_found', 'no such thread');
  end if;
  if v_thread.current_job_id is not null then
    perform corevo.refuse('RV105', 'thread_busy', 'stop its run first');
  end if;
  v_jobs := array(select j.id from corevo.jobs j where j.thread_id = p_thread);
  delete from corevo.events e where e.execution_id in (select x.id from corevo.executions x where x.job_id = any (v_jobs));
  delete from corevo.executions x where x.job_id = any (v_jobs);
  delete from corevo.commands c where c.job_id = any (v_jobs);
  delete from corevo.idempotency i where i.job_id = any (v_jobs);
  delete from corevo.messages m where m.thread_id = p_thread;
  delete from corevo.jobs j where j.thread_id = p_thread;
  delete from corevo.threads t where t.id = p_thread;
end $$;

-- Messages of a thread in order, after a (turn, part); an answer with the error its job ended with.
create or replace function corevo.messages_after(
  p_account uuid,
  p_thread uuid,
  p_after_turn int,
  p_after_part int,
  p_limit int
) returns table (
  id uuid, turn int, part int, role text, text text, job_id uuid, status text, error_code text, error_message text,
  created_at timestamptz
) language sql stable as $$
  select m.id, m.turn, m.part, m.role, m.text, m.job_id, m.status, j.error_code, j.error_message, m.created_at
    from (
      select m.id, m.turn, m.part, m.role, m.text, m.job_id, m.status, m.created_at from corevo.messages m
        where m.thread_id = p_thread
          and exists (select 1 from corevo.threads t where t.id = p_thread and t.account_id = p_account)
          and (m.turn, m.part) > (p_after_turn, p_after_part)
        order by m.turn, m.part limit p_limit
    ) m
    left join corevo.jobs j on j.id = m.job_id and m.role = 'assistant'
    order by m.turn, m.part
$$;

-- The same from the newest on, before a (turn, part).
create or replace function corevo.messages_before(
  p_account uuid,
  p_thread uuid,
  p_before_turn int,
  p_before_part int,
  p_limit int
) returns table (
  id uuid, turn int, part int, role text, text text, job_id uuid, status text, error_code text, error_message text,
  created_at timestamptz
) language sql stable as $$
  select m.id, m.turn, m.part, m.role, m.text, m.job_id, m.status, j.error_code, j.error_message, m.created_at
    from (
      select m.id, m.turn, m.part, m.role, m.text, m.job_id, m.status, m.created_at from corevo.messages m
        where m.thread_id = p_thread
          and exists (select 1 from corevo.threads t where t.id = p_thread and t.account_id = p_account)
          and (m.turn, m.part) < (p_before_turn, p_before_part)
        order by m.turn desc, m.part desc limit p_limit
    ) m
    left join corevo.jobs j on j.id = m.job_id and m.role = 'assistant'
    order by m.turn desc, m.part desc
$$;

-- Sends messages on channels; one transaction of its own, never part of the work it announces.
create or replace function corevo.notify(
  p_channels text[],
  p_payloads text[]
) returns void language plpgsql as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_notify(n.channel, n.payload) from unnest(p_channels, p_payloads) n (channel, payload);
end $$;
