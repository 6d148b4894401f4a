-- Check every invariant of the protocol in one snapshot: prints one line a violation, nothing when all is well
--
--   psql "$DATABASE_URL" -X -f ops/check_invariants.sql          exit status 3 when something is violated
--
-- One query an invariant, under a header `-- NAME: sentence`. Each returns (invariant, id, detail), and no row on a
-- correct database at any instant, under load and after any fault. The tests run this same file (tests/invariants.py),
-- so it keeps to that form. Names: I… as in the design; S… are about the structure, and catch what the others build on.
-- Not here yet, because their tables are not: day rows and holds (I6), leases (I8), operations (I13), the in-flight
-- limit of I7, live dedupe fingerprints of I5, thinned rows of I2. What needs a client's history (I4, I9, I12) is checked
-- by the tests.
-- Times are compared with one another and never with the clock, which runs on while the snapshot stands still.

\set ON_ERROR_STOP on
\set QUIET on
\pset format unaligned
\pset fieldsep ' · '
\pset tuples_only on
\if :{?ttl_seconds} \else \set ttl_seconds 20 \getenv ttl_seconds COREVO_HEARTBEAT_TTL_SECONDS
\endif
\if :{?stall_limit_seconds} \else \set stall_limit_seconds 60 \getenv stall_limit_seconds COREVO_LOOP_STALL_LIMIT_SECONDS
\endif
\if :{?period_seconds} \else \set period_seconds 5 \getenv period_seconds COREVO_JANITOR_SECONDS
\endif
set lock_timeout = '2s';
set statement_timeout = '300s';
\set seen ''
begin transaction isolation level repeatable read read only;

-- I1: A job has at most one execution per epoch, and at most one that has not ended.
select 'I1' as invariant, x.job_id::text as id, format('%s executions of epoch %s', count(*), x.epoch) as detail
  from corevo.executions x group by x.job_id, x.epoch having count(*) > 1
union all
select 'I1', x.job_id::text, format('%s open executions', count(*))
  from corevo.executions x where x.ended_at is null group by x.job_id having count(*) > 1;
\set seen :seen:ROW_COUNT

-- I2: An ended execution has exactly one terminal event and no row above it, an open one has none; seq has no gap.
-- Days that were dropped are left out: executions older than the oldest partition have no events any more.
with kept as (
  select coalesce(
           corevo.uuid7_floor(min(to_date(right(c.relname, 8), 'YYYYMMDD'))::timestamp at time zone 'utc'),
           '00000000-0000-0000-0000-000000000000') as first_id
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'corevo.events'::regclass
), stored as (
  select e.execution_id, count(*) as rows, min(e.seq) as first_seq, max(e.seq) as last_seq,
         count(*) filter (where e.type in ('run.completed', 'run.failed', 'run.cancelled', 'run.interrupted',
                                           'run.timed_out', 'run.lost')) as ends,
         max(e.seq) filter (where e.type in ('run.completed', 'run.failed', 'run.cancelled', 'run.interrupted',
                                             'run.timed_out', 'run.lost')) as end_seq
    from corevo.events e group by e.execution_id
)
select 'I2' as invariant, coalesce(x.id, s.execution_id)::text as id,
       case
         when x.id is null then format('%s events of no execution', s.rows)
         when s.execution_id is null then 'no event at all'
         when s.first_seq <> 1 or s.rows <> s.last_seq then format('%s rows from %s to %s', s.rows, s.first_seq, s.last_seq)
         when x.ended_at is null then format('open, with a terminal event at %s', s.end_seq)
         else format('ended, with %s terminal events, the last at %s of %s', s.ends, s.end_seq, s.last_seq)
       end as detail
  from corevo.executions x
  full join stored s on s.execution_id = x.id
  where (x.id is null or x.id >= (select k.first_id from kept k))
    and (x.id is null or s.execution_id is null or s.first_seq <> 1 or s.rows <> s.last_seq
         or (x.ended_at is null and s.ends > 0)
         or (x.ended_at is not null and (s.ends <> 1 or s.end_seq <> s.last_seq)));
\set seen :seen:ROW_COUNT

-- I3: A running job and its execution have one token, one epoch and one owner; an owned job has a token.
select 'I3' as invariant, j.id::text as id,
       format('job epoch %s token %s worker %s, execution %s %s %s of job %s',
              j.epoch, j.token, j.worker_id, x.epoch, x.token, x.worker_id, x.job_id) as detail
  from corevo.jobs j join corevo.executions x on x.id = j.execution_id
  where x.job_id <> j.id
     or (j.state = 'running'
         and (x.token, x.epoch, x.worker_id) is distinct from (j.token, j.epoch, j.worker_id))
union all
select 'I3', j.id::text, 'owned, without a token'
  from corevo.jobs j where j.state in ('queued', 'running') and j.worker_id is not null and j.token is null
union all
select 'I3', x.id::text, format('execution of epoch %s, its job has only reached %s', x.epoch, j.epoch)
  from corevo.executions x join corevo.jobs j on j.id = x.job_id where x.epoch > j.epoch;
\set seen :seen:ROW_COUNT

-- I5: One job per account and idempotency key, and it is that account's.
select 'I5' as invariant, i.account_id::text as id, format('key %L stands for %s jobs', i.key, count(*)) as detail
  from corevo.idempotency i group by i.account_id, i.key having count(*) > 1
union all
select 'I5', i.job_id::text, format('key %L names a job that %s', i.key,
                                    case when j.id is null then 'does not exist' else 'belongs to somebody else' end)
  from corevo.idempotency i left join corevo.jobs j on j.id = i.job_id
  where j.id is null or j.account_id <> i.account_id;
\set seen :seen:ROW_COUNT

-- I7: At most one unended job of a thread is not blocked.
select 'I7' as invariant, j.thread_id::text as id, format('%s unended jobs are not blocked', count(*)) as detail
  from corevo.jobs j
  where j.state in ('queued', 'running') and j.blocked_by is null
  group by j.thread_id having count(*) > 1;
\set seen :seen:ROW_COUNT

-- I10: No ended job has an open command.
select 'I10' as invariant, c.id::text as id, format('%s is %s, its job is %s', c.kind, c.state, coalesce(j.state, 'gone')) as detail
  from corevo.commands c left join corevo.jobs j on j.id = c.job_id
  where c.state in ('requested', 'accepted') and (j.id is null or j.state not in ('queued', 'running'));
\set seen :seen:ROW_COUNT

-- I11: While the janitor has watched long enough, no unended job's owner has been silent for longer than TTL + stall limit + one period.
-- Long enough is TTL + one period, and one TTL more, because a watch has holes of up to half a TTL. "Now" is the last sweep.
select 'I11' as invariant, j.id::text as id,
       format('%s, worker %s silent since %s, last sweep %s', j.state, j.worker_id, coalesce(w.beat_at, j.claimed_at), d.swept_at) as detail
  from corevo.duties d
  cross join corevo.jobs j
  left join corevo.workers w on w.id = j.worker_id
  where d.name = 'janitor'
    and d.watching_since <= d.swept_at - (2 * :'ttl_seconds'::float8 + :'period_seconds'::float8) * interval '1 second'
    and j.state in ('queued', 'running') and j.worker_id is not null
    and coalesce(w.beat_at, j.claimed_at)
        < d.swept_at - (:'ttl_seconds'::float8 + :'stall_limit_seconds'::float8 + :'period_seconds'::float8) * interval '1 second'
    and j.claimed_at < d.swept_at - (:'ttl_seconds'::float8 + :'period_seconds'::float8) * interval '1 second';
\set seen :seen:ROW_COUNT

-- I14: A thread names its current job exactly while that job is unended.
select 'I14' as invariant, t.id::text as id,
       format('current is %s, which is %s', t.current_job_id,
              case when j.id is null then 'gone' when j.blocked_by is not null then 'blocked' else j.state end) as detail
  from corevo.threads t left join corevo.jobs j on j.id = t.current_job_id
  where t.current_job_id is not null
    and (j.id is null or j.thread_id <> t.id or j.state not in ('queued', 'running') or j.blocked_by is not null)
union all
select 'I14', j.id::text, format('%s and not blocked, its thread names %s', j.state, coalesce(t.current_job_id::text, 'none'))
  from corevo.jobs j join corevo.threads t on t.id = j.thread_id
  where j.state in ('queued', 'running') and j.blocked_by is null and t.current_job_id is distinct from j.id;
\set seen :seen:ROW_COUNT

-- S1: A job is running exactly while the execution it names is open; a queued job has no open execution.
select 'S1' as invariant, j.id::text as id,
       format('%s, names execution %s, open: %s', j.state, coalesce(j.execution_id::text, 'none'), coalesce(x.id::text, 'none')) as detail
  from corevo.jobs j left join corevo.executions x on x.job_id = j.id and x.ended_at is null
  where (j.state = 'running') is distinct from (x.id is not null)
     or (x.id is not null and j.execution_id is distinct from x.id);
\set seen :seen:ROW_COUNT

-- S2: Every next job waits for its thread's current one.
select 'S2' as invariant, j.id::text as id,
       format('blocked by %s, the thread''s current job is %s', j.blocked_by, coalesce(t.current_job_id::text, 'none')) as detail
  from corevo.jobs j join corevo.threads t on t.id = j.thread_id
  where j.blocked_by is not null and j.blocked_by is distinct from t.current_job_id;
\set seen :seen:ROW_COUNT

-- S3: Every job has its user's message; exactly the ended ones have one answer, with the state they ended in.
select 'S3' as invariant, j.id::text as id,
       format('%s, %s messages of the user, %s answers (%s)', j.state, coalesce(m.asked, 0), coalesce(m.answered, 0), m.status) as detail
  from corevo.jobs j
  left join (
    select m.job_id, count(*) filter (where m.part = 1 and m.role = 'user') as asked,
           count(*) filter (where m.part = 1000 and m.role = 'assistant') as answered,
           max(m.status) filter (where m.part = 1000) as status
      from corevo.messages m group by m.job_id
  ) m on m.job_id = j.id
  where m.asked is distinct from 1
     or m.answered <> case when j.state in ('queued', 'running') then 0 else 1 end
     or (j.state not in ('queued', 'running') and m.status is distinct from j.state);
\set seen :seen:ROW_COUNT

-- S4: The terminal event says what its execution's row says.
select 'S4' as invariant, x.id::text as id,
       format('outcome %s, will_retry %s; event %s %s', x.outcome, x.will_retry, e.type, e.data) as detail
  from corevo.executions x
  join corevo.events e on e.execution_id = x.id
   and e.type in ('run.completed', 'run.failed', 'run.cancelled', 'run.interrupted', 'run.timed_out', 'run.lost')
  where e.type <> 'run.' || x.outcome
     or x.will_retry is distinct from coalesce((e.data ->> 'will_retry')::boolean, false);
\set seen :seen:ROW_COUNT

-- S5: An execution that ended for good has ended its job with its outcome; one with will_retry has not.
select 'S5' as invariant, x.id::text as id,
       format('%s, will_retry %s; its job is %s and names %s', x.outcome, x.will_retry, j.state, coalesce(j.execution_id::text, 'none')) as detail
  from corevo.executions x join corevo.jobs j on j.id = x.job_id
  where x.ended_at is not null
    and (case when x.will_retry then j.execution_id is not distinct from x.id
              else (j.state, j.execution_id) is distinct from (x.outcome, x.id) end);
\set seen :seen:ROW_COUNT

-- S6: A job has as many executions as attempts, within its limit, and starts at the first of them.
select 'S6' as invariant, j.id::text as id, format('%s attempts of %s, %s executions', j.attempts, j.max_attempts, count(x.id)) as detail
  from corevo.jobs j left join corevo.executions x on x.job_id = j.id
  group by j.id, j.attempts, j.max_attempts, j.started_at
  having count(x.id) <> j.attempts or j.attempts > j.max_attempts or (j.started_at is null) <> (j.attempts = 0);
\set seen :seen:ROW_COUNT

-- S7: Account, thread, job and message belong together, and a thread counts its turns.
select 'S7' as invariant, j.id::text as id, format('account %s, its thread''s is %s', j.account_id, t.account_id) as detail
  from corevo.jobs j join corevo.threads t on t.id = j.thread_id where j.account_id <> t.account_id
union all
select 'S7', m.id::text, format('turn %s of thread %s, its job: turn %s of %s', m.turn, m.thread_id, j.turn, j.thread_id)
  from corevo.messages m left join corevo.jobs j on j.id = m.job_id
  where (m.thread_id, m.turn) is distinct from (j.thread_id, j.turn)
union all
select 'S7', t.id::text, format('last turn %s, newest job has %s', t.last_turn, coalesce(max(j.turn), 0))
  from corevo.threads t left join corevo.jobs j on j.thread_id = t.id
  group by t.id, t.last_turn having t.last_turn <> coalesce(max(j.turn), 0);
\set seen :seen:ROW_COUNT

-- S8: An unended job was asked to stop exactly while one open cancel command says so, and then it is running.
select 'S8' as invariant, j.id::text as id,
       format('%s, cancel requested at %s, %s open cancels', j.state, coalesce(j.cancel_requested_at::text, 'no time'), count(c.id)) as detail
  from corevo.jobs j
  left join corevo.commands c on c.job_id = j.id and c.kind = 'cancel' and c.state in ('requested', 'accepted')
  where j.state in ('queued', 'running')
  group by j.id, j.state, j.cancel_requested_at
  having count(c.id) <> case when j.cancel_requested_at is null then 0 else 1 end
      or (j.cancel_requested_at is not null and j.state <> 'running');
\set seen :seen:ROW_COUNT

commit;
select :'seen' ~ '[1-9]' as violated \gset
\if :violated
do $$ begin raise exception 'the protocol is violated: see the rows above'; end $$;
\endif
