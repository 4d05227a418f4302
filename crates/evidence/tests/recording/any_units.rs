//! What is installed to run, and how it fares, with every value that its types allow.

use crate::any_evidence::{number, text, time};
use coroner_evidence::{
    ChildExits, Container, Enablement, Evidence, FileAnswer, FileFormat, FileQuestion, FileState, Package, Preset,
    TextFile, Unit, UnitFile, UnitLogLine, UnitSockets, Wall,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

pub fn unit() -> impl Strategy<Value = Unit> {
    let names = (text(), text(), text(), text());
    let numbers = (any::<Option<u32>>(), of(time()), any::<Option<u32>>(), any::<Option<i32>>(), of(number()));
    let times = (of(time()), of(time()), any::<Option<bool>>());
    let details = (times, vec(of(number()), 7), vec(text(), 0..3), vec(text(), 0..3));
    (time(), names, vec(of(text()), 7), numbers, details).prop_map(
        |(
            at,
            (name, load_state, active_state, sub_state),
            mut texts,
            (restarts, main_started, main_pid, exit_status, restart_delay_us),
            ((main_exited, active_since, conditions_held), mut more, triggered_by, triggers),
        )| {
            let mut text = || texts.pop().expect("as many as there are fields");
            let mut number = || more.pop().expect("as many as there are fields");
            Unit {
                at,
                name,
                load_state,
                active_state,
                sub_state,
                unit_file_state: text(),
                result: text(),
                restarts,
                invocation_id: text(),
                main_started,
                main_pid,
                exit_kind: text(),
                exit_status,
                restart_delay_us,
                cgroup: text(),
                service_type: text(),
                restart: text(),
                main_exited,
                active_since,
                cpu_ns: number(),
                memory_bytes: number(),
                tasks: number(),
                triggered_by,
                triggers,
                last_trigger: number().map(Wall),
                next_trigger: number().map(Wall),
                accepted: number(),
                connections: number(),
                conditions_held,
            }
        },
    )
}

fn unit_file() -> impl Strategy<Value = UnitFile> {
    let package = (text(), of(text()), text()).prop_map(|(name, version, manager)| Package { name, version, manager });
    (text(), of(text()), 0..Enablement::ALL.len(), of(Just(Preset::Disabled)), of(package), vec(text(), 0..3)).prop_map(
        |(name, path, enablement, preset, package, drop_ins)| UnitFile {
            name,
            path,
            enablement: Enablement::ALL[enablement],
            preset,
            package,
            drop_ins,
            ..UnitFile::default()
        },
    )
}

fn file_answer() -> impl Strategy<Value = FileAnswer> {
    let state = prop_oneof![
        Just(FileState::Missing),
        text().prop_map(|path| FileState::Empty { path }),
        (text(), vec(text(), 0..3)).prop_map(|(path, keys_set)| FileState::Present { path, keys_set }),
        text().prop_map(|why| FileState::Unseen { why }),
    ];
    (text(), vec(text(), 0..3), state).prop_map(|(path, keys, state)| FileAnswer {
        question: FileQuestion { path, format: FileFormat::Lines, keys },
        state,
    })
}

fn text_file() -> impl Strategy<Value = TextFile> {
    (text(), text()).prop_map(|(path, text)| TextFile { path, text })
}

fn log_line() -> impl Strategy<Value = UnitLogLine> {
    (text(), number(), text(), any::<Option<u32>>()).prop_map(|(unit, wall, text, restart)| UnitLogLine {
        unit,
        at: Wall(wall),
        text,
        restart,
    })
}

fn sockets() -> impl Strategy<Value = UnitSockets> {
    (time(), text(), number(), number(), number()).prop_map(|(at, unit, processes, listening, connected)| UnitSockets {
        at,
        unit,
        processes,
        listening,
        connected,
    })
}

fn child_exits() -> impl Strategy<Value = ChildExits> {
    let who = (any::<u32>(), text(), of(text()), text());
    let how = (number(), number(), number(), any::<Option<i32>>(), any::<Option<i32>>());
    (time(), time(), who, how).prop_map(
        |(from, to, (parent_pid, parent_comm, cgroup, comm), (exits, failed, failed_young, exit_code, signal))| {
            ChildExits {
                from,
                to,
                parent_pid,
                parent_comm,
                cgroup,
                comm,
                exits,
                failed,
                failed_young,
                exit_code,
                signal,
            }
        },
    )
}

fn container() -> impl Strategy<Value = Container> {
    (time(), (text(), text()), vec(of(text()), 4), number(), (of(number()), of(number())), any::<Option<i32>>())
        .prop_map(|(at, (runtime, name), mut texts, restarts, (started, first_started), exit_code)| {
            let mut text = || texts.pop().expect("as many as there are fields");
            Container {
                at,
                runtime,
                name,
                namespace: text(),
                pod: text(),
                pod_uid: text(),
                id: text(),
                restarts,
                started: started.map(Wall),
                first_started: first_started.map(Wall),
                exit_code,
            }
        })
}

/// Everything about units, and nothing else.
pub fn units() -> impl Strategy<Value = Evidence> {
    let files = (vec(unit_file(), 0..3), vec(file_answer(), 0..3), vec(text_file(), 0..3), of(text_file()));
    let done = (vec(log_line(), 0..3), vec(sockets(), 0..3), vec(child_exits(), 0..3), vec(container(), 0..3));
    (vec(unit(), 0..3), files, done).prop_map(
        |(
            units,
            (unit_files, agent_files, catalogues, baseline),
            (unit_log, unit_sockets, child_exits, containers),
        )| {
            Evidence {
                units,
                unit_files,
                agent_files,
                catalogues,
                baseline,
                unit_log,
                unit_sockets,
                child_exits,
                containers,
                ..Evidence::default()
            }
        },
    )
}
