//! The keys of facts, their units and their words.

use crate::fact::Unit;
use crate::name::{Name, named};

macro_rules! keys {
    ($($variant:ident $name:ident $unit:ident $words:literal;)*) => {
        /// What a fact is about. The name of a key and its unit never change; the words may. In the words, `{of}` is whose it is, `{over}` the
        /// time in which it was counted, and a part in brackets is shown only with an `{of}`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum FactKey {
            $($variant,)*
            /// Of a newer version than this one.
            Other(Name),
        }

        impl FactKey {
            pub const ALL: &[FactKey] = &[$(FactKey::$variant,)*];

            pub fn as_str(&self) -> &str {
                match self {
                    $(FactKey::$variant => stringify!($name),)*
                    FactKey::Other(name) => name.as_str(),
                }
            }

            pub fn parse(text: &str) -> Option<FactKey> {
                match text {
                    $(stringify!($name) => Some(FactKey::$variant),)*
                    _ => None,
                }
            }

            pub fn unit(&self) -> Unit {
                match self {
                    $(FactKey::$variant => Unit::$unit,)*
                    FactKey::Other(_) => Unit::Plain,
                }
            }

            pub(crate) fn words(&self) -> &'static str {
                match self {
                    $(FactKey::$variant => $words,)*
                    FactKey::Other(_) => "",
                }
            }
        }
    };
}

keys! {
    // Cores.
    Core core Plain "core";
    Cores cores Plain "cores";
    CoreList core_list Plain "cores";
    Busy busy Percent "busy";
    KernelShare kernel_share Percent "system, irq and softirq";
    Lasted lasted Millis "lasted";
    BusyOfAllCores busy_of_all_cores Percent "average of all cores";
    BusyOfOtherCores busy_of_other_cores Percent "average of the other cores";
    Owner owner Plain "owner";
    OwnerShare owner_share Percent "owner's share of the busy time";
    OwnerClass owner_class Plain "owner's scheduling class";
    OwnerAffinity owner_affinity Plain "owner's affinity";
    PinnedShare pinned_share Percent "share of {of}, pinned to this core";
    Waited waited Millis "{of} waited";
    GotOfAsked got_of_asked Percent "{of} got, of the CPU time it asked for";
    TakenBy taken_by Percent "share of the waits in which {of} had the core";
    CameFirst came_first Plain "why {of} came first";
    WeightOf weight_of Plain "CPU weight of {of}";
    ShortLived short_lived Times "short-lived processes of {of} that ended";
    BlockedFor blocked_for Millis "{of} was blocked";
    BlockedIn blocked_in Plain "kernel function in which {of} was blocked";
    BlockedOn blocked_on Plain "what {of} was blocked on";
    Serves serves Plain "serves";
    Queues queues Plain "queues";
    ThreadsWaiting threads_waiting Plain "threads waiting, on average";
    CpuPressureSome cpu_pressure_some Percent "CPU pressure, some";
    StolenOfWanted stolen_of_wanted Percent "stolen, of the time cores had work";
    Stolen stolen Percent "stolen, of all cores' time";
    StolenWorstSecond stolen_worst_second Percent "stolen from core {of} in its worst second";
    InterruptShare interrupt_share Percent "interrupts and softirqs";
    InterruptMost interrupt_most Plain "mostly";
    // What the kernel worked on.
    ShareOfCore share_of_core Percent "{of}: share of one core";
    BusiestSecond busiest_second Percent "share in its busiest second";
    MostlyIn mostly_in Plain "mostly in";
    ShareOfThatCore share_of_that_core Percent "share of that core's time";
    // Quotas.
    Periods periods Plain "periods";
    PeriodsThrottled periods_throttled Plain "periods throttled";
    ThrottledShare throttled_share Percent "share of periods throttled";
    Throttled throttled Millis "throttled time, summed over cores";
    Quota quota Cores "quota";
    Cgroups cgroups Plain "cgroups";
    // The network.
    Dropped dropped Packets "dropped";
    DroppedOnCore dropped_on_core Packets "dropped on core {of}";
    Processed processed Packets "processed";
    DroppedShare dropped_share Percent "share dropped";
    Squeezed squeezed Plain "polls that ran out of budget";
    Watched watched Millis "watched";
    Allowance allowance Packets "{of}";
    AllowanceEver allowance_ever Packets "{of} since the driver started";
    Queue queue Plain "queue";
    ServingCore serving_core Plain "core that serves the queue";
    SinceNapi since_napi Millis "time since the poll (NAPI) last ran";
    Silence silence Millis "silence before the last reset";
    DropLines drop_lines Plain "log lines about dropped packets";
    Netns netns Plain "network namespace";
    Connections connections Plain "tracked connections, peak";
    ConnectionsMax connections_max Plain "connection limit";
    // The kernel log.
    IncidentsDay incidents_day Plain "incidents in the last 24 h";
    StallsDay stalls_day Plain "incidents of {of} in the last 24 h";
    Lines lines Plain "log lines about it";
    First first Plain "first";
    Last last Plain "last";
    Line line Plain "line";
    LastLine last_line Plain "last line";
    Longest longest Seconds "longest";
    HungTasksDay hung_tasks_day Plain "hung tasks in the last 24 h";
    HungTasks hung_tasks Plain "hung tasks";
    LongestHang longest_hang Seconds "longest wait, at least";
    Functions functions Plain "functions";
    NotedFrom noted_from Micros "reported above";
    XidDay xid_day Times "Xid {of} in the last 24 h";
    XidLast xid_last Plain "Xid {of}, last";
    XidProcess xid_process Plain "Xid {of}, process";
    CounterRose counter_rose Plain "rise of {of} while watching";
    // Memory.
    MemoryPressureFull memory_pressure_full Percent "memory pressure, full";
    MemoryPressureSome memory_pressure_some Percent "memory pressure, some";
    DirectScanned direct_scanned Plain "pages scanned by allocating threads (pgscan_direct) within {over}";
    DirectFreed direct_freed Plain "pages those threads freed (pgsteal_direct) within {over}";
    DirectStalls direct_stalls Plain "times a thread had to reclaim (allocstall) within {over}";
    KswapdScanned kswapd_scanned Plain "pages scanned in the background (pgscan_kswapd) within {over}";
    Refaults refaults Plain "pages refaulted after reclaim (workingset_refault) within {over}";
    Compactions compactions Plain "times a thread had to compact (compact_stall) within {over}";
    SwappedIn swapped_in Plain "pages swapped in (pswpin) within {over}";
    SwappedOut swapped_out Plain "pages swapped out (pswpout) within {over}";
    MemoryAvailable memory_available Bytes "MemAvailable";
    MemoryTotal memory_total Bytes "MemTotal";
    ResidentMemory resident_memory Bytes "resident memory of {of}";
    SharedMemory shared_memory Bytes "Shmem (tmpfs, /dev/shm and shared memory)";
    LimitHits limit_hits Plain "limit hits within {over}";
    Usage usage Bytes "usage";
    Limit limit Bytes "limit";
    KilledDay killed_day Plain "processes killed in the last 24 h";
    KilledWatched killed_watched Plain "processes killed while watching";
    KilledIn killed_in Plain "killed in {of}, newest first";
    Victims victims Plain "victims, newest first";
    LastVictimCgroup last_victim_cgroup Plain "cgroup of the last victim";
    // Cgroups, dead and alive.
    DeadMemcgs dead_memcgs Plain "dead memory cgroups";
    TrackedMemcgs tracked_memcgs Plain "tracked by the kernel";
    LiveMemcgs live_memcgs Plain "live (directories)";
    DeadMemcgsMore dead_memcgs_more Plain "growth within {over}";
    DeadMemcgsPerHour dead_memcgs_per_hour PerHour "growth";
    DeadBelow dead_below Plain "dead cgroups below {of}";
    DeadAs dead_as Plain "dead cgroups named {of}";
    DeadOf dead_of Plain "dead cgroups of {of}";
    HeldBy held_by Bytes "memory held by {of}";
    PinnedIn pinned_in Bytes "of that, in {of}";
    CgroupsMadeBy cgroups_made_by Cgroups "made by {of}";
    CgroupsLeftBy cgroups_left_by Cgroups "of these, dead and not freed, made by {of}";
    DeadBefore dead_before Plain "dead cgroups that were there before watching began";
    DeadCost dead_cost Plain "cost: {of}";
    LiveCgroups live_cgroups Plain "live cgroups";
    LiveCgroupsAtLeast live_cgroups_at_least Plain "live cgroups, at least";
    EmptyCgroups empty_cgroups Plain "of these, empty";
    ChildCgroups child_cgroups Plain "children of {of}";
    ExampleCgroup example_cgroup Plain "one of them";
    BornOf born_of Plain "cgroups made by {of}";
    RemovedByIt removed_by_it Plain "cgroups it removed";
    MemcgIds memcg_ids Plain "memory cgroup IDs available";
    ReadTime read_time Millis "time to read";
    ReadTimeAtLeast read_time_at_least Millis "time to read, at least";
    ReadCpu read_cpu Millis "CPU time of the read";
    // Units and containers.
    Restarts restarts Plain "restarts";
    RestartsWithin restarts_within Plain "restarts within {over}";
    RestartsPerHour restarts_per_hour PerHour "restarts per hour[, {of}]";
    AutomaticRestarts automatic_restarts Plain "automatic restarts (NRestarts)";
    AutomaticRestartsWithin automatic_restarts_within Plain "of these, within {over}";
    RestartsMeanwhile restarts_meanwhile Plain "restarts systemd counted meanwhile";
    LastStart last_start Plain "last start";
    LoopingFor looping_for Seconds "looping for";
    LoopingForAtLeast looping_for_at_least Seconds "looping for at least";
    Trend trend Plain "trend";
    State state Plain "state";
    Result result Plain "result";
    Enabled enabled Plain "enabled";
    ExitCode exit_code Plain "exit code";
    ExitStatus exit_status Plain "exit status";
    ExitStatusOrSignal exit_status_or_signal Plain "exit status or signal";
    Signal signal Plain "killed by signal";
    ContainerId container_id Plain "container ID";
    PodUid pod_uid Plain "pod UID";
    DeadOfUnit dead_of_unit Plain "dead memory cgroups of this unit";
    DeadHold dead_hold Bytes "memory they hold";
    DeadPerHour dead_per_hour PerHour "new ones per hour[ ({of})]";
    KeptBy kept_by Cgroups "kept by {of}";
    CgroupNames cgroup_names Plain "cgroups";
    CgroupsMade cgroups_made Plain "cgroups made";
    CgroupsRemoved cgroups_removed Plain "cgroups removed";
    Maker maker Plain "made by";
    ChildrenFailedYoung children_failed_young Plain "children that failed soon after start";
    ChildrenEnded children_ended Plain "children that ended";
    StartedBy started_by Plain "started by";
    ChurnPerHour churn_per_hour PerHour "rate";
    FailedLast failed_last SecondsAgo "failed last";
    RunsFailed runs_failed Plain "runs that failed";
    RunsSeen runs_seen Plain "runs seen";
    JournalFailures journal_failures Plain "failures in the journal";
    RunsNextIn runs_next_in Seconds "next run in";
    OtherFailedUnits other_failed_units Plain "other failed units";
    UnitNew unit_new Plain "new: {of}";
    UnitGone unit_gone Plain "gone: {of}";
    UnitChanged unit_changed Plain "changed: {of}";
    UnitsDrifted units_drifted Units "more {of}";
    // Agents.
    InUse in_use Plain "sign that {of} is in use";
    BothHere both_here Plain "both present";
    HowSure how_sure Plain "certainty";
    IdleAgent idle_agent Plain "{of}";
    AgentConfiguration agent_configuration Plain "configuration";
    AgentCredentials agent_credentials Plain "credentials";
    AgentHardware agent_hardware Plain "hardware";
    AgentLog agent_log Plain "its log";
    AgentRival agent_rival Plain "another owner";
    AgentCloud agent_cloud Plain "cloud";
    AgentRestarts agent_restarts Plain "restarts";
    AgentCgroups agent_cgroups Plain "cgroups";
    AgentSockets agent_sockets Plain "sockets";
    AgentIdle agent_idle Plain "idle";
    AgentWithoutUnit agent_without_unit Plain "no unit";
    AgentStart agent_start Plain "start";
    AgentConfigured agent_configured Plain "configured";
    AgentAtWork agent_at_work Plain "at work";
    AgentUnseen agent_unseen Plain "not seen";
}

named!(FactKey, "a fact key");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_read_back() {
        for key in FactKey::ALL {
            assert_eq!(FactKey::parse(key.as_str()), Some(*key));
            assert!(Name::new(key.as_str()).is_some(), "an older version would reject {}", key.as_str());
        }
    }
}
