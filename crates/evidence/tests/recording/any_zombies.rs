//! Dead cgroups, their makers and samples of the kernel, with every value that a scan may have.

use crate::any_evidence::{number, text, time};
use coroner_evidence::{
    Born, CgroupChurn, Charged, DeadBelow, Hold, KernelWork, Maker, PinningFile, TriedInVain, WorkKind, WorkRow,
    Zombie, ZombieMethod, ZombieScan,
};
use proptest::array::{uniform3, uniform4};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

fn held() -> impl Strategy<Value = Charged> {
    (uniform3(number()), uniform4(of(number()))).prop_map(
        |([file, swap_backed, unevictable], [anonymous, shmem, kernel, swap])| Charged {
            file,
            swap_backed,
            unevictable,
            anonymous,
            shmem,
            kernel,
            swap,
        },
    )
}

fn zombie() -> impl Strategy<Value = Zombie> {
    let path = prop_oneof!["/a/b-[0-9]{1,3}(/c)?", text()];
    let born = (time(), any::<bool>()).prop_map(|(at, exact)| Born { at, exact });
    (number(), path, of(number()), held(), of(born), any::<bool>(), number()).prop_map(
        |(id, path, references, held, born, directory_lives, serial)| Zombie {
            id,
            path,
            references,
            held,
            born,
            directory_lives,
            serial,
        },
    )
}

fn file() -> impl Strategy<Value = PinningFile> {
    let names = (of(text()), any::<Option<u32>>(), text());
    (names, any::<(bool, bool)>(), any::<(u32, u32)>(), uniform4(number())).prop_map(
        |((path, seen_by, filesystem), (mounted, deleted), device, [inode, size, bytes, zombies])| PinningFile {
            path,
            seen_by,
            mounted,
            filesystem,
            device,
            inode,
            size,
            deleted,
            bytes,
            zombies,
        },
    )
}

pub fn zombie_scan() -> impl Strategy<Value = ZombieScan> {
    let below = (text(), of(number()), of(held())).prop_map(|(parent, dead, held)| DeadBelow { parent, dead, held });
    let tried = (text(), text(), text()).prop_map(|(method, why, how_to_see)| TriedInVain { method, why, how_to_see });
    let method = prop::sample::select(ZombieMethod::ALL.to_vec());
    let hold = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), number());
    let numbers = (number(), any::<u8>(), of(number()), of(number()), of(number()), number());
    let dead = (vec(zombie(), 0..8), vec(file(), 0..5), vec(hold, 0..8), vec(below, 0..3));
    (time(), method, numbers, dead, of(text()), of(text()), vec(tried, 0..3)).prop_map(
        |(
            at,
            method,
            (took_ns, version, tracked, live, dead, leaving),
            (zombies, files, holds, below),
            files_unseen,
            truncated,
            instead_of,
        )| {
            let both = !zombies.is_empty() && !files.is_empty();
            let holds = holds.into_iter().filter(|_| both).map(|(zombie, file, bytes)| Hold {
                zombie: zombie.index(zombies.len()) as u32,
                file: file.index(files.len()) as u32,
                bytes,
            });
            let mut holds: Vec<_> = holds.collect();
            holds.sort_by_key(|h| h.zombie);
            ZombieScan {
                at,
                took_ns,
                method,
                version,
                tracked,
                live,
                dead,
                leaving,
                zombies,
                below,
                files,
                holds,
                files_unseen,
                truncated,
                instead_of,
            }
        },
    )
}

pub fn cgroup_churn() -> impl Strategy<Value = CgroupChurn> {
    let texts = (text(), of(text()), of(text()), of(text()), of(text()));
    let maker = (any::<u32>(), any::<Option<u32>>(), number(), texts).prop_map(
        |(pid, parent_pid, processes, (comm, via, command, parent_comm, cgroup))| Maker {
            processes,
            pid,
            comm,
            via,
            command,
            parent_pid,
            parent_comm,
            cgroup,
        },
    );
    (time(), time(), (text(), text(), text()), uniform3(number()), of(maker)).prop_map(
        |(from, to, (parent, pattern, example), [born, removed, freed], maker)| CgroupChurn {
            from,
            to,
            parent,
            pattern,
            example,
            born,
            removed,
            freed,
            maker,
        },
    )
}

pub fn kernel_work() -> impl Strategy<Value = KernelWork> {
    let kind = proptest::sample::select(WorkKind::ALL);
    let row = (any::<[u32; 3]>(), text(), kind, number(), of(text())).prop_map(
        |([core, pid, tid], comm, kind, samples, symbol)| WorkRow { core, pid, tid, comm, kind, samples, symbol },
    );
    (time(), time(), any::<(u32, u32)>(), number(), vec(row, 0..3))
        .prop_map(|(from, to, (rate_hz, cores), lost, rows)| KernelWork { from, to, rate_hz, cores, lost, rows })
}
