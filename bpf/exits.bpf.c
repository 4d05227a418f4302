/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How the children of each process end: counts by parent and name, for the stretch of time that the reader calls a turn.
 *
 * The tracepoint is passed by each thread that ends (kernel/exit.c: do_exit), after it has left signal->live and has its exit
 * code, on all kernels from 5.4 to 6.18. The process ends with the thread that finds nobody alive: not with its first thread,
 * which may end before others, or when another one calls execve. From 6.16 the kernel says so itself, by an argument that older
 * ones lack; so we look for ourselves everywhere.
 *
 * Counts instead of events, as a build or a fork bomb ends 100,000 processes a second. */
#define PAGE_FAULTS /* core.h: the reading helpers of 5.4 */
#include "core.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define ENTRIES 4096
#define COMM 16
#define YOUNG 10000000000ull /* ns */

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_LRU_HASH = 9 };
enum { BPF_NOEXIST = 1, EEXIST = 17 };
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;

struct children {
	u32 turn;
	s32 parent; /* of the process, in the initial namespace */
	char comm[COMM];
};
struct failures {
	u64 failed, young;
	u32 status; /* of the last, as wait(2) has it */
	u32 reserved;
	char parent_comm[COMM];
};
_Static_assert(sizeof(struct children) == 24 && sizeof(struct failures) == 40, "known to the reader");

struct control {
	u32 turn;
	s32 own; /* whose children do not count; 0: unknown */
};
struct process { u64 began; u64 tgid; };

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct control); } CONTROL SEC(".maps");
/* Failures for which there was no room. */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, u64); } LOST SEC(".maps");
/* The reader takes the turns that are over out of it. */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, ENTRIES); __type(key, struct children); __type(value, struct failures); } FAILED SEC(".maps");
/* Children that ended well matter beside failed ones only: nobody empties this, old turns fall out of it. */
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, ENTRIES); __type(key, struct children); __type(value, u64); } WELL SEC(".maps");
/* Processes with threads whose end was counted. */
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, ENTRIES); __type(key, struct process); __type(value, u64); } COUNTED SEC(".maps");

struct signal_struct { atomic_t live; s32 nr_threads, group_exit_code; u32 flags; } RELOCATED;
struct task_struct___ending {
	struct task_struct___ending *real_parent, *group_leader;
	struct signal_struct *signal;
	s32 tgid, exit_code;
	u32 flags;
	u64 start_time;
	char comm[COMM];
} RELOCATED;
#define TASK(task, field) READ(struct task_struct___ending, task, field)
#define SIGNAL(signal, field) READ(struct signal_struct, signal, field)

/* include/linux/sched.h, include/linux/sched/signal.h */
#define PF_KTHREAD 0x00200000
#define SIGNAL_GROUP_EXIT 0x00000004

/* Signals by which people and supervisors end what is well, or whose cause is told elsewhere (the OOM killer's KILL): HUP, INT,
 * KILL, PIPE, TERM. Shells, and programs that catch them, make exit codes from 128 up of them; 129 is git's for bad usage. */
#define ASKED (1 << 1 | 1 << 2 | 1 << 9 | 1 << 13 | 1 << 15)
#define ASKED_CODES (ASKED & ~(1 << 1))

INLINE int is_failure(u32 status)
{
	u32 signal = status & 0x7f, code = status >> 8 & 0xff;
	if (signal)
		return signal > 15 || !(ASKED >> signal & 1);
	if (code > 128 && code < 144)
		return !(ASKED_CODES >> (code - 128) & 1);
	return code != 0;
}

/* Into zeros: behind the end of a name, old kernels have what is left of a longer one. */
INLINE void read_name(char to[COMM], u64 task)
{
	read_string(to, COMM, task + OFFSET(struct task_struct___ending, comm));
}

INLINE void count_failure(struct children *children, u64 parent, u32 status, int young)
{
	struct failures *known = bpf_map_lookup_elem(&FAILED, children);
	if (!known) {
		struct failures first = {};
		read_name(first.parent_comm, (u64)TASK(parent, group_leader));
		/* Another core may have been faster. */
		bpf_map_update_elem(&FAILED, children, &first, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&FAILED, children);
	}
	if (!known) {
		u32 zero = 0;
		u64 *lost = bpf_map_lookup_elem(&LOST, &zero);
		if (lost)
			__sync_fetch_and_add(lost, 1);
		return;
	}
	__sync_fetch_and_add(&known->failed, 1);
	if (young)
		__sync_fetch_and_add(&known->young, 1);
	known->status = status;
}

INLINE void count_well(struct children *children)
{
	u64 *known = bpf_map_lookup_elem(&WELL, children), none = 0;
	if (!known) {
		bpf_map_update_elem(&WELL, children, &none, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&WELL, children);
	}
	if (known)
		__sync_fetch_and_add(known, 1);
}

SEC("raw_tp/sched_process_exit") int ended(u64 *ctx)
{
	u64 task = ctx[0], signal = (u64)TASK(task, signal);
	if (SIGNAL(signal, live.counter) != 0)
		return 0;
	u32 zero = 0;
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	if (!control)
		return 0;
	/* Kernel threads end too, and start programs: nobody supervises those. */
	u64 leader = (u64)TASK(task, group_leader), parent = (u64)TASK(leader, real_parent);
	struct children children = { .turn = control->turn, .parent = TASK(parent, tgid) };
	if (TASK(parent, flags) & PF_KTHREAD || children.parent == control->own)
		return 0;
	u64 began = TASK(leader, start_time);
	/* Threads that end at the same time may all find nobody alive: the first counts. Who is alone need not ask. */
	if (SIGNAL(signal, nr_threads) > 1) {
		struct process process = { .began = began, .tgid = (u64)TASK(leader, tgid) };
		if (bpf_map_update_elem(&COUNTED, &process, &began, BPF_NOEXIST) == -EEXIST)
			return 0;
	}
	/* As wait_task_zombie in kernel/exit.c says. */
	u32 status = SIGNAL(signal, flags) & SIGNAL_GROUP_EXIT ? SIGNAL(signal, group_exit_code) : TASK(leader, exit_code);
	read_name(children.comm, leader);
	if (is_failure(status))
		count_failure(&children, parent, status, bpf_ktime_get_ns() - began < YOUNG);
	else
		count_well(&children);
	return 0;
}
