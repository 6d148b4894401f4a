-- Why a worker fell silent, and what held its event loop.

alter table corevo.workers add column trouble text;  -- said by its pulse while it withholds the heartbeat

create table corevo.stalls (
  id          bigint generated always as identity primary key,
  worker_id   uuid not null,
  worker_name text not null,
  at          timestamptz not null,       -- when it was over, or noted while it went on
  seconds     double precision not null,
  place       text not null,              -- file:line in function of the frame that held the loop
  task        text not null,              -- the asyncio task; an agent's names the job
  cpu_seconds double precision not null,  -- little: it waited; about as much as seconds: it computed
  gc_seconds  double precision not null
);
create index stalls_by_time on corevo.stalls (at);
