//! The tables of a recording.
//!
//! People read them with sqlite3, so names say what they mean. Times are nanoseconds of CLOCK_MONOTONIC (`…_ns`); the views
//! translate to the wall clock. SQLite's integers are signed: numbers above 2⁶³ wrap, but the kernel has none that large.

/// "CRNR", at offset 68 of the file: tells a recording from other SQLite files.
pub const APPLICATION_ID: i32 = 0x4352_4E52;

/// The version of the format, SQLite's user_version. Raised by any change that another coroner would misread or miss; only this one is read.
pub const FORMAT: u32 = 5;

pub const CREATE: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE node (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE cost (id INTEGER PRIMARY KEY, startup_cpu_ms INTEGER, cpu_ms INTEGER, peak_rss_bytes INTEGER);
CREATE TABLE clocks (id INTEGER PRIMARY KEY, at_ns INTEGER, real_ns INTEGER, boot_ns INTEGER);
CREATE TABLE processes (
  id INTEGER PRIMARY KEY, at_ns INTEGER, pid INTEGER, started_ticks INTEGER, ppid INTEGER, comm TEXT, command TEXT,
  is_kernel INTEGER, memory_cgroup TEXT, cpu_cgroup TEXT, unit TEXT, pod_uid TEXT, container_id TEXT,
  is_ray INTEGER, ray_job_id TEXT, ray_submission_id TEXT, ray_entry_point TEXT);
CREATE TABLE threads (
  id INTEGER PRIMARY KEY, at_ns INTEGER, tid INTEGER, started_ticks INTEGER, pid INTEGER, comm TEXT, is_kernel INTEGER,
  scheduling_class TEXT, rt_priority INTEGER, nice INTEGER, affinity_cores TEXT);
CREATE TABLE observers (id INTEGER PRIMARY KEY, at_ns INTEGER, pid INTEGER, started_ticks INTEGER);
CREATE TABLE memory_holders (
  id INTEGER PRIMARY KEY, at_ns INTEGER, pid INTEGER, started_ticks INTEGER, comm TEXT, resident_bytes INTEGER);
CREATE TABLE nics (
  id INTEGER PRIMARY KEY, at_ns INTEGER, netns TEXT, name TEXT, driver TEXT, bus TEXT, is_up INTEGER);
CREATE TABLE nic_queues (
  id INTEGER PRIMARY KEY, nic_id INTEGER, kind TEXT, queue INTEGER, mapped_by TEXT, irq INTEGER, irq_cores TEXT,
  napi_id INTEGER, napi_tid INTEGER, napi_cores TEXT, steering_cores TEXT);
CREATE TABLE cgroup_mounts (
  id INTEGER PRIMARY KEY, version INTEGER, controllers_json TEXT, mount_point TEXT, root TEXT);
CREATE TABLE cgroup_censuses (
  id INTEGER PRIMARY KEY, at_ns INTEGER, version INTEGER, mount_point TEXT, live INTEGER, tracked INTEGER, dying INTEGER,
  dying_source TEXT, empty INTEGER, is_truncated INTEGER, took_ns INTEGER);
CREATE TABLE crowded_parents (
  id INTEGER PRIMARY KEY, census_id INTEGER, path TEXT, children INTEGER, empty INTEGER, dying INTEGER, example TEXT);
CREATE TABLE stat_reads (
  id INTEGER PRIMARY KEY, at_ns INTEGER, path TEXT, took_ns INTEGER, cpu_ns INTEGER, is_finished INTEGER);
CREATE TABLE zombie_scans (
  id INTEGER PRIMARY KEY, at_ns INTEGER, took_ns INTEGER, method TEXT, version INTEGER, tracked INTEGER, live INTEGER,
  dead INTEGER, leaving INTEGER, files_unseen TEXT, truncated TEXT, instead_of_json TEXT);
CREATE TABLE zombies_below (
  id INTEGER PRIMARY KEY, scan_id INTEGER, parent TEXT, dead INTEGER, file_bytes INTEGER, swap_backed_bytes INTEGER,
  unevictable_bytes INTEGER, anonymous_bytes INTEGER, shmem_bytes INTEGER, kernel_bytes INTEGER, swap_bytes INTEGER);
CREATE TABLE zombie_files (
  id INTEGER PRIMARY KEY, scan_id INTEGER, place INTEGER, path TEXT, seen_by_pid INTEGER, is_mounted INTEGER,
  filesystem TEXT, device_major INTEGER, device_minor INTEGER, inode INTEGER, size INTEGER, is_deleted INTEGER,
  bytes INTEGER, zombies INTEGER);
CREATE TABLE zombie_chunks (
  id INTEGER PRIMARY KEY, scan_id INTEGER, rows INTEGER, held_bytes INTEGER, example TEXT, data BLOB);
CREATE TABLE cgroup_churn (
  id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, parent TEXT, pattern TEXT, example TEXT, born INTEGER,
  removed INTEGER, freed INTEGER, maker_pid INTEGER, maker_comm TEXT, maker_via TEXT, maker_processes INTEGER, maker_command TEXT,
  maker_parent_pid INTEGER, maker_parent_comm TEXT, maker_cgroup TEXT);
CREATE TABLE cgroup_fates (
  id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, parent TEXT, pattern TEXT, born INTEGER, removed INTEGER,
  freed INTEGER, left_json TEXT, left_freed_json TEXT, maker_pid INTEGER, maker_comm TEXT, maker_via TEXT,
  maker_processes INTEGER, maker_command TEXT, maker_parent_pid INTEGER, maker_parent_comm TEXT, maker_cgroup TEXT);
CREATE TABLE kernel_work (
  id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, rate_hz INTEGER, cores INTEGER, lost INTEGER, kernel INTEGER,
  memcg_walk INTEGER, reclaim INTEGER, rows_json TEXT);
CREATE TABLE wait_ledgers (
  id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, method TEXT, watched_ns INTEGER, unbooked_ns INTEGER,
  waited_ns INTEGER, throttled_ns INTEGER, blocked_ns INTEGER, books BLOB);
CREATE TABLE kernel_log (
  id INTEGER PRIMARY KEY, at_ns INTEGER, uncertainty_ns INTEGER, stamp_us INTEGER, sequence INTEGER, level INTEGER,
  facility INTEGER, text TEXT);
CREATE TABLE units (
  id INTEGER PRIMARY KEY, at_ns INTEGER, name TEXT, load_state TEXT, active_state TEXT, sub_state TEXT,
  unit_file_state TEXT, result TEXT, restarts INTEGER, invocation_id TEXT, main_started_ns INTEGER, main_pid INTEGER,
  exit_kind TEXT, exit_status INTEGER, restart_delay_us INTEGER, cgroup TEXT);
CREATE TABLE unit_details (id INTEGER PRIMARY KEY, unit_id INTEGER, details_json TEXT);
CREATE TABLE unit_files (
  id INTEGER PRIMARY KEY, name TEXT, enablement TEXT, preset TEXT, path TEXT, package TEXT, package_version TEXT,
  file_json TEXT);
CREATE TABLE agent_files (id INTEGER PRIMARY KEY, path TEXT, answer_json TEXT);
CREATE TABLE text_files (id INTEGER PRIMARY KEY, kind TEXT, path TEXT, text TEXT);
CREATE TABLE unit_log (id INTEGER PRIMARY KEY, unit TEXT, real_ns INTEGER, text TEXT, restart INTEGER);
CREATE TABLE unit_sockets (
  id INTEGER PRIMARY KEY, at_ns INTEGER, unit TEXT, processes INTEGER, listening INTEGER, connected INTEGER);
CREATE TABLE child_exits (
  id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, parent_pid INTEGER, parent_comm TEXT, cgroup TEXT, comm TEXT,
  exits INTEGER, failed INTEGER, failed_young INTEGER, exit_code INTEGER, signal INTEGER);
CREATE TABLE containers (
  id INTEGER PRIMARY KEY, at_ns INTEGER, runtime TEXT, name TEXT, namespace TEXT, pod TEXT, pod_uid TEXT,
  container_id TEXT, restarts INTEGER, started_real_ns INTEGER, first_started_real_ns INTEGER, exit_code INTEGER);
CREATE TABLE unseen (
  id INTEGER PRIMARY KEY, probe TEXT, what TEXT, why TEXT, how_to_see TEXT, UNIQUE (probe, what, why, how_to_see));
CREATE TABLE findings (
  id INTEGER PRIMARY KEY, code TEXT, severity TEXT, subject_kind TEXT, subject TEXT, title TEXT, detail TEXT, remedy TEXT);
CREATE TABLE incident (
  id INTEGER PRIMARY KEY, number INTEGER, code TEXT, subject TEXT, core INTEGER, text TEXT, triggered_real_ns INTEGER,
  from_real_ns INTEGER, until_real_ns INTEGER);
CREATE TABLE risers (
  id INTEGER PRIMARY KEY, what TEXT, name TEXT, baseline REAL, now REAL, baseline_samples INTEGER, now_samples INTEGER,
  sigmas REAL, baseline_processes INTEGER, now_processes INTEGER, mostly_in TEXT, mostly_in_share REAL, carries_json TEXT);
CREATE TABLE rollups (
  id INTEGER PRIMARY KEY, minute_real_ns INTEGER, cores INTEGER, busy_mean REAL, busy_max REAL, worst_core INTEGER,
  worst_core_system REAL, by_core_json TEXT, zombies_tracked INTEGER, zombies_live INTEGER, zombies_dead INTEGER,
  unit_restarts INTEGER, nic_resets INTEGER, softnet_drops INTEGER, oom_kills INTEGER, cpu_stall_us INTEGER,
  memory_stall_us INTEGER, io_stall_us INTEGER, samples INTEGER, lost_samples INTEGER);
CREATE TABLE series (id INTEGER PRIMARY KEY, source TEXT, subject TEXT, name TEXT);
CREATE TABLE core_time_chunks (id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, rows INTEGER, data BLOB);
CREATE TABLE thread_sample_chunks (id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, rows INTEGER, data BLOB);
CREATE TABLE counter_chunks (id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, rows INTEGER, data BLOB);
CREATE TABLE profile_source (
  id INTEGER PRIMARY KEY, kind TEXT, file TEXT, host TEXT, clock_ns INTEGER, real_ns INTEGER, lost INTEGER,
  report_json TEXT);
CREATE TABLE profile_events (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE profile_paths (id INTEGER PRIMARY KEY, path TEXT);
CREATE TABLE profile_tasks (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, comm TEXT, cgroup_path_id INTEGER);
CREATE TABLE profile_frames (
  id INTEGER PRIMARY KEY, symbol TEXT, module_path_id INTEGER, place TEXT, is_inlined INTEGER, build_id TEXT,
  file_offset INTEGER);
CREATE TABLE profile_stack_chunks (id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, rows INTEGER, data BLOB);
CREATE TABLE profile_sample_chunks (id INTEGER PRIMARY KEY, from_ns INTEGER, to_ns INTEGER, rows INTEGER, data BLOB);
CREATE INDEX profile_sample_chunks_by_time ON profile_sample_chunks (to_ns, from_ns);

-- What to add to at_ns to get nanoseconds since 1970; empty if no clock was read.
CREATE VIEW wall_clock AS SELECT real_ns - at_ns AS offset_ns FROM clocks ORDER BY id DESC LIMIT 1;
CREATE VIEW log_readable AS
  SELECT strftime('%Y-%m-%dT%H:%M:%S', (at_ns + offset_ns) / 1000000000, 'unixepoch')
           || printf('.%06dZ', (at_ns + offset_ns) / 1000 % 1000000) AS time,
         uncertainty_ns / 1000000 AS uncertainty_ms, level,
         CASE facility WHEN 0 THEN 'kernel' ELSE 'user space' END AS written_by, text, kernel_log.id
  FROM kernel_log LEFT JOIN wall_clock ORDER BY at_ns, kernel_log.id;
-- What happened, by time: the kernel's warnings, units, their children and logs, cgroup censuses, slow reads, zombies, who makes and removes cgroups.
CREATE VIEW events AS
  SELECT strftime('%Y-%m-%dT%H:%M:%S', (at_ns + offset_ns) / 1000000000, 'unixepoch')
           || printf('.%06dZ', (at_ns + offset_ns) / 1000 % 1000000) AS time,
         kind, subject, event, at_ns
  FROM (
    SELECT at_ns, 'log' AS kind, 'kernel' AS subject, text AS event FROM kernel_log WHERE level <= 4 AND facility = 0
    UNION ALL
    SELECT at_ns, 'unit', name, active_state || '/' || sub_state || coalesce(', ' || restarts || ' restarts', '')
           || coalesce(', result ' || result, '') FROM units
    UNION ALL
    SELECT to_ns, 'children', parent_comm || ' (pid ' || parent_pid || ')',
           exits || ' of ' || comm || ' ended in ' || printf('%.1f s', (to_ns - from_ns) / 1e9) || ', ' || failed || ' failed'
           FROM child_exits WHERE failed > 0
    UNION ALL
    SELECT real_ns - offset_ns, 'unit log', unit, text FROM unit_log JOIN wall_clock
    UNION ALL
    SELECT at_ns, 'cgroups', mount_point, live || ' live, ' || coalesce(dying, 'unknown') || ' dying' FROM cgroup_censuses
    UNION ALL
    SELECT at_ns, 'stat read', path, iif(is_finished, '', 'at least ') || printf('%.3f ms', took_ns / 1e6) FROM stat_reads
    UNION ALL
    SELECT at_ns, 'zombies', 'cgroup v' || version,
           coalesce(dead, 'unknown') || ' dead, ' || coalesce(live, 'unknown') || ' live, by ' || method
           || coalesce(' (' || truncated || ')', '') FROM zombie_scans
    UNION ALL
    SELECT to_ns, 'cgroup churn', rtrim(parent, '/') || '/' || pattern,
           born || ' born, ' || removed || ' removed, ' || freed || ' freed in '
           || printf('%.1f s', (to_ns - from_ns) / 1e9)
           || coalesce(', by ' || maker_comm || ' (pid ' || maker_pid || ')', '')
           || coalesce(' through ' || maker_via, '') FROM cgroup_churn
    UNION ALL
    SELECT to_ns, 'kernel', cores || ' cores', kernel || ' samples in the kernel in '
           || printf('%.1f s', (to_ns - from_ns) / 1e9) || ': ' || memcg_walk || ' stepping through memory cgroups, '
           || reclaim || ' in reclaim' FROM kernel_work
           -- One core for 30 % of the time, or more: calm seconds would hide everything else.
           WHERE kernel >= 0.3 * rate_hz * (to_ns - from_ns) / 1e9
  ) LEFT JOIN wall_clock ORDER BY at_ns;
-- One line for each look at the dead. `named` is how many are in zombie_chunks, where the scan could name them at all.
CREATE VIEW zombies_readable AS
  SELECT strftime('%Y-%m-%dT%H:%M:%S', (at_ns + offset_ns) / 1000000000, 'unixepoch')
           || printf('.%06dZ', (at_ns + offset_ns) / 1000 % 1000000) AS time,
         method, version, tracked, live, dead, leaving,
         CASE WHEN method LIKE 'bpf%'
           THEN (SELECT coalesce(sum(rows), 0) FROM zombie_chunks WHERE scan_id = scan.id) END AS named,
         (SELECT sum(mb) FROM (
            SELECT held_bytes / 1e6 AS mb FROM zombie_chunks WHERE scan_id = scan.id
            UNION ALL
            SELECT (file_bytes + swap_backed_bytes + unevictable_bytes + coalesce(kernel_bytes, 0)) / 1e6
            FROM zombies_below WHERE scan_id = scan.id)) AS held_mb,
         (SELECT example FROM zombie_chunks WHERE scan_id = scan.id ORDER BY id LIMIT 1) AS example,
         (SELECT coalesce(path, filesystem || ' ' || device_major || ':' || device_minor || ' inode ' || inode)
            || iif(is_deleted, ' (deleted)', '') || ': ' || zombies || ' zombies'
          FROM zombie_files WHERE scan_id = scan.id ORDER BY place LIMIT 1) AS biggest_file,
         took_ns / 1e6 AS took_ms, scan.id
  FROM zombie_scans AS scan LEFT JOIN wall_clock ORDER BY at_ns, scan.id;
-- As each device was seen last.
CREATE VIEW nic_cores AS
  SELECT nics.name AS nic, netns, driver, kind || '-' || queue AS queue, mapped_by, irq, irq_cores, napi_tid, napi_cores,
         steering_cores
  FROM nic_queues JOIN (SELECT max(id) AS id, netns, name, driver FROM nics GROUP BY netns, name) AS nics
    ON nics.id = nic_id ORDER BY nic_queues.id;
";
