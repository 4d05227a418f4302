//! Kernel functions that reveal what the kernel is doing.
//!
//! **What counts as walking cgroups** ([`WALK`], [`STEP`]). A function that was inlined into its caller has no frame, and which
//! ones are inlined differs by kernel and compiler. Hence two lists:
//! - any frame of the chain is a function that iterates over cgroups: the iterators, the statistics readers that use them, the
//!   flushing of per-core statistics (rstat). Functions with other callers as well (`css_tryget`, `memcg_page_state`) are left
//!   out: during a walk, their callers are in the chain.
//! - or the *innermost* frame is a reclaim function that runs once per cgroup (`shrink_node`, `shrink_lruvec`, `shrink_slab` …).
//!   If there are pages to look at, the work happens in functions they call (`shrink_folio_list`, `isolate_lru_folios`, a file
//!   system's shrinker), so their own time is that of the visit. On Linux 6.18, reclaim over five thousand empty cgroups spends
//!   a third in `mem_cgroup_iter` and more than half in these.
//!
//! So reclaim of many pages in few cgroups is [`WorkKind::Reclaim`](super::WorkKind::Reclaim); reclaim that visits thousands of cgroups with
//! nothing to take is mostly [`WorkKind::ReclaimWalk`](super::WorkKind::ReclaimWalk). It walks live cgroups, too: they need not be dead.
//!
//! Clock samples come with an interrupt: they cannot occur while interrupts are off and hit the code that re-enables them.
//! Flushing statistics holds a lock that way; the sample still has the flush in its chain.

/// What the presence of a function in a stack means, as a set of bits.
pub type Meaning = u16;

/// Iterates over cgroups, wherever it is in the chain.
pub const WALK: Meaning = 1 << 0;
/// Runs once per cgroup in reclaim: a step of the walk if it is innermost.
pub const STEP: Meaning = 1 << 1;
pub const RECLAIM: Meaning = 1 << 2;
/// The idle task, waiting.
pub const IDLE: Meaning = 1 << 3;
/// Work that interrupts something else, even the idle task: interrupts, softirqs, requests from other cores.
pub const INTERRUPT: Meaning = 1 << 4;
pub const PAGE_TABLES: Meaning = 1 << 5;
pub const HUGE_PAGES: Meaning = 1 << 6;
pub const PAGE_FAULT: Meaning = 1 << 7;
pub const KERNFS: Meaning = 1 << 8;
pub const NETWORK: Meaning = 1 << 9;
/// The return from an interrupt: a schedule() called from it is not interrupt work.
pub const LEAVING: Meaning = 1 << 10;
/// The function has a name. User code has this bit and nothing else.
pub const NAMED: Meaning = 1 << 14;
pub const KERNEL: Meaning = 1 << 15;

pub const USER_CODE: Meaning = NAMED;
/// What a function in a module can mean. Idle drivers come as modules; everything else in these lists is built in.
pub const OF_MODULES: Meaning = KERNEL | NAMED | IDLE;

/// By the full name, without the compiler's suffix after a dot (`.isra.0`, `.constprop.0`, `.part.0`, `.cold`).
pub(super) const FUNCTIONS: &[(Meaning, &[&str])] = &[
    (
        WALK,
        &[
            // Iterators: kernel/cgroup/cgroup.c, mm/memcontrol.c.
            "mem_cgroup_iter",
            "css_next_child",
            "css_next_descendant_pre",
            "css_next_descendant_post",
            "css_rightmost_descendant",
            // Statistics that sum up descendants: v1 until about 5.8, v2 until 5.1. Later kernels flush (below) and then only print,
            // which is no walk: so the v2 files and their formatting are not listed.
            "mem_cgroup_nr_lru_pages",
            "mem_cgroup_node_nr_lru_pages",
            "memcg_numa_stat_show",
            "memcg_stat_show",
            "memcg_sum_events",
            "tree_stat",
            "tree_events",
            "accumulate_memcg_tree",
            // rstat: kernel/cgroup/rstat.c, before 4.18 within cgroup.c; css_rstat from 6.16.
            "mem_cgroup_css_rstat_flush",
            "mem_cgroup_stat_aggregate",
            "mem_cgroup_flush_stats",
            "mem_cgroup_flush_stats_ratelimited",
            "mem_cgroup_flush_stats_delayed",
            "__mem_cgroup_flush_stats",
            "do_flush_stats",
            "flush_memcg_stats_dwork",
            "css_rstat_flush",
            "css_rstat_updated_list",
            "cgroup_rstat_flush",
            "cgroup_rstat_flush_locked",
            "cgroup_rstat_flush_irqsafe",
            "cgroup_rstat_flush_atomic",
            "cgroup_rstat_flush_hold",
            "cgroup_rstat_updated_list",
            "cgroup_rstat_cpu_pop_updated",
            // Over all memcgs, when a shrinker is added.
            "memcg_expand_shrinker_maps",
            "expand_shrinker_info",
            "expand_one_shrinker_info",
        ],
    ),
    (
        // mm/vmscan.c, mm/shrinker.c, mm/memcontrol.c: bodies of loops over memcgs.
        STEP | RECLAIM,
        &[
            "shrink_node",
            "shrink_node_memcg",
            "shrink_node_memcgs",
            "shrink_zone",
            "shrink_lruvec",
            "shrink_slab",
            "shrink_slab_memcg",
            "shrink_many",
            "shrink_one",
            "get_scan_count",
            "prepare_scan_control",
            "prepare_scan_count",
            "lru_gen_shrink_node",
            "lru_gen_shrink_lruvec",
            "try_to_shrink_lruvec",
            "set_mm_walk",
            "lru_gen_age_node",
            "age_lruvec",
            "age_active_anon",
            "kswapd_age_node",
            "snapshot_refaults",
            "drop_slab",
            "drop_slab_node",
        ],
    ),
    (
        // Helpers of such a visit, which have other callers, too.
        STEP,
        &[
            "mem_cgroup_calculate_protection",
            "mem_cgroup_protected",
            "effective_protection",
            "page_counter_calculate_protection",
            "get_swappiness",
            "mem_cgroup_get_nr_swap_pages",
            "mem_cgroup_online",
            "lruvec_lru_size",
            "vmpressure",
            "blk_start_plug",
            "blk_finish_plug",
        ],
    ),
    (
        RECLAIM,
        &[
            "try_to_free_pages",
            "do_try_to_free_pages",
            "try_to_free_mem_cgroup_pages",
            "balance_pgdat",
            "kswapd_shrink_node",
            "node_reclaim",
            "__node_reclaim",
            "shrink_zones",
            "shrink_all_memory",
            "shrink_list",
            "shrink_active_list",
            "shrink_inactive_list",
            "shrink_folio_list",
            "shrink_page_list",
            "evict_folios",
            "evict_pages",
            "do_shrink_slab",
            "reclaim_pages",
            "reclaim_folio_list",
            "reclaim_page_list",
            "reclaim_high",
            "user_proactive_reclaim",
            "mem_cgroup_force_empty",
            "mem_cgroup_force_empty_write",
            "mem_cgroup_shrink_node",
            "mem_cgroup_soft_limit_reclaim",
            "memcg1_soft_limit_reclaim",
            "lru_gen_seq_write",
        ],
    ),
    (
        // Walks another process's page tables for its files in /proc: fs/proc/task_mmu.c.
        PAGE_TABLES,
        &[
            "show_smap",
            "show_smaps_rollup",
            "smap_gather_stats",
            "smaps_pte_range",
            "smaps_pte_hole",
            "smaps_pte_hole_lookup",
            "smaps_hugetlb_range",
            "clear_refs_write",
            "clear_refs_pte_range",
            "pagemap_read",
            "pagemap_pmd_range",
            "pagemap_scan_pmd_entry",
            "show_numa_map",
            "gather_pte_stats",
        ],
    ),
    (
        // Files of cgroups and of /sys: fs/kernfs, kernel/cgroup, mm/memcontrol.c.
        KERNFS,
        &[
            "cgroup_seqfile_show",
            "cgroup_procs_show",
            "cgroup_stat_show",
            "cpu_stat_show",
            "cgroup_base_stat_cputime_show",
            "memory_stat_show",
            "memory_numa_stat_show",
            "memory_stat_format",
            "memcg_stat_format",
            "memcg1_stat_format",
            "memory_events_show",
            "mem_cgroup_read_u64",
            "kernfs_fop_open",
            "kernfs_fop_read",
            "kernfs_fop_read_iter",
            "kernfs_fop_readdir",
            "kernfs_seq_start",
            "kernfs_seq_show",
            "kernfs_iop_lookup",
            "kernfs_iop_getattr",
            "kernfs_iop_permission",
            "kernfs_dop_revalidate",
        ],
    ),
    (
        // mm/compaction.c, mm/khugepaged.c, and the zeroing of a huge page.
        HUGE_PAGES,
        &[
            "compact_zone",
            "compact_zone_order",
            "compact_node",
            "try_to_compact_pages",
            "__alloc_pages_direct_compact",
            "isolate_migratepages_block",
            "isolate_freepages_block",
            "kcompactd_do_work",
            "collapse_huge_page",
            "khugepaged_scan_mm_slot",
            "hpage_collapse_scan_pmd",
            "khugepaged_do_scan",
            "do_huge_pmd_anonymous_page",
            "__do_huge_pmd_anonymous_page",
            "clear_huge_page",
            "split_huge_page_to_list",
            "split_huge_page_to_list_to_order",
            "__split_huge_pmd",
        ],
    ),
    (
        // arch/*/mm/fault.c, mm/memory.c.
        PAGE_FAULT,
        &[
            "handle_mm_fault",
            "__handle_mm_fault",
            "do_user_addr_fault",
            "exc_page_fault",
            "asm_exc_page_fault",
            "do_page_fault",
            "__do_page_fault",
            "do_mem_abort",
            "do_translation_fault",
            "lock_mm_and_find_vma",
        ],
    ),
    (
        // net/core/dev.c: received packets.
        NETWORK,
        &["__napi_poll", "napi_poll", "napi_threaded_poll", "napi_threaded_poll_loop", "process_backlog"],
    ),
    (
        // Where an idle core waits: kernel/sched/idle.c, drivers/cpuidle, drivers/acpi, arch/*; 5.4 to 6.18.
        IDLE,
        &[
            "do_idle",
            "cpu_startup_entry",
            "cpu_idle_poll",
            "cpuidle_idle_call",
            "call_cpuidle",
            "default_idle_call",
            "default_enter_idle",
            "tick_nohz_idle_enter",
            "tick_nohz_idle_exit",
            "poll_idle",
            "haltpoll_select",
            // The start of the section: another name of its first function.
            "__cpuidle_text_start",
            // x86
            "arch_cpu_idle",
            "default_idle",
            "x86_idle",
            "native_halt",
            "mwait_idle",
            "amd_e400_idle",
            "tdx_halt",
            "__tdx_hypercall",
            "xen_hypercall_sched_op",
            "acpi_processor_ffh_cstate_enter",
            // arm64
            "cpu_do_idle",
            "cpu_v7_do_idle",
            "arch_cpu_idle_enter",
            "arch_cpu_idle_exit",
            "acpi_processor_ffh_lpi_enter",
            "arm_cpuidle_suspend",
            "psci_enter_idle_state",
            "__psci_enter_domain_idle_state",
            "psci_enter_domain_idle_state",
            "psci_cpu_suspend_enter",
            "psci_suspend_finisher",
            "cpu_suspend",
            "__cpu_suspend_enter",
            "__invoke_psci_fn_hvc",
            "__invoke_psci_fn_smc",
            "__arm_smccc_hvc",
            "__arm_smccc_smc",
            // powerpc, s390, riscv
            "snooze_loop",
            "stop_loop",
            "dedicated_cede_loop",
            "enabled_wait",
            "psw_idle",
            "sbi_cpuidle_enter_state",
        ],
    ),
    (
        // Packets, in softirq context.
        NETWORK | INTERRUPT,
        &["net_rx_action", "net_tx_action"],
    ),
    (
        // Entry points of interrupts and the softirq loop, 5.4 to 6.18.
        INTERRUPT,
        &[
            // kernel/softirq.c
            "handle_softirqs",
            "__do_softirq",
            "do_softirq",
            "do_softirq_own_stack",
            "__softirqentry_text_start",
            "__irq_exit_rcu",
            "irq_exit_rcu",
            "irq_exit",
            "run_ksoftirqd",
            "run_ktimerd",
            // kernel/irq, and what timer interrupts and IPIs call on every architecture
            "handle_irq_event",
            "handle_irq_event_percpu",
            "__handle_irq_event_percpu",
            "generic_handle_irq",
            "__handle_domain_irq",
            "handle_domain_irq",
            "generic_handle_domain_irq",
            "generic_handle_arch_irq",
            "hrtimer_interrupt",
            "generic_smp_call_function_single_interrupt",
            // The idle task handles requests from other cores without an interrupt.
            "flush_smp_call_function_from_idle",
            "flush_smp_call_function_queue",
            "__flush_smp_call_function_queue",
            // x86 since 5.8; FRED since 6.9
            "common_interrupt",
            "__common_interrupt",
            "asm_common_interrupt",
            "fred_extint",
            "exc_nmi",
            "asm_exc_nmi",
            "fred_exc_nmi",
            "exc_xen_hypervisor_callback",
            "asm_exc_xen_hypervisor_callback",
            "xen_pv_evtchn_do_upcall",
            "xen_evtchn_do_upcall",
            // x86 to 5.7
            "do_IRQ",
            "ret_from_intr",
            "do_nmi",
            "nmi",
            "end_repeat_nmi",
            "scheduler_ipi",
            "reschedule_interrupt",
            "apic_timer_interrupt",
            "call_function_interrupt",
            "call_function_single_interrupt",
            "irq_work_interrupt",
            "thermal_interrupt",
            "spurious_interrupt",
            "error_interrupt",
            "x86_platform_ipi",
            "xen_hypervisor_callback",
            "xen_hvm_callback_vector",
            "hyperv_callback_vector",
            "hyperv_vector_handler",
            "hv_stimer0_callback_vector",
            // arm64
            "el1_irq",
            "el0_irq",
            "el0_irq_naked",
            "el0_irq_compat",
            "el1_interrupt",
            "el0_interrupt",
            "__el0_irq_handler_common",
            "__el0_fiq_handler_common",
            "call_on_irq_stack",
            "do_interrupt_handler",
            "gic_handle_irq",
        ],
    ),
    (
        LEAVING,
        &[
            "irqentry_exit",
            "irqentry_exit_to_user_mode",
            "irqentry_exit_cond_resched",
            "raw_irqentry_exit_cond_resched",
            "dynamic_irqentry_exit_cond_resched",
            "exit_to_user_mode_loop",
            "exit_to_user_mode_prepare",
            "preempt_schedule_irq",
            // x86 to 5.7
            "prepare_exit_to_usermode",
            "exit_to_usermode_loop",
            "retint_user",
            "retint_kernel",
            "swapgs_restore_regs_and_return_to_usermode",
            // arm64
            "arm64_preempt_schedule_irq",
            "exit_to_user_mode",
            "arm64_exit_to_user_mode",
            "arm64_exit_to_kernel_mode",
            "exit_to_kernel_mode",
            "do_notify_resume",
            "ret_to_user",
            "work_pending",
        ],
    ),
];

/// Families of functions that kernels and hypervisors have many of, by parts of the name.
pub(super) fn family_of(name: &str) -> Meaning {
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    // `sysvec_apic_timer_interrupt`, `asm_sysvec_call_function`, `fred_sysvec_reschedule_ipi`.
    let vector = name.trim_start_matches("asm_").trim_start_matches("fred_").trim_start_matches("__");
    let of_arm64 = begins(&["el1h_", "el1t_", "el0t_"]) && ends(&["_irq", "_irq_handler", "_fiq", "_fiq_handler"]);
    if vector.starts_with("sysvec_") || (begins(&["smp_"]) && ends(&["_interrupt"])) || of_arm64 {
        return INTERRUPT;
    }
    // native_, pv_native_, xen_, pvm_, tdx_ and acpi_safe_halt; the drivers' states.
    let waits = begins(&["intel_idle", "acpi_idle_", "mwait_idle_", "cpuidle_enter"]) || name.contains("_safe_halt");
    if waits { IDLE } else { 0 }
}
