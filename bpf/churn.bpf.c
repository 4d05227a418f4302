/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Who makes and removes cgroups: one event for each directory made, removed, and freed at last.
 *
 * The kernel calls these tracepoints under one lock, with the path in one buffer (kernel/cgroup/cgroup-internal.h:
 * TRACE_CGROUP_PATH), so that no two of our programs run at a time: plain counters and one scratch event suffice.
 * Events go through a queue map: from 4.20, one for all cores, and each is popped once. One object serves all kernels from 5.4
 * on, so it takes the helpers of that time. */
#define PAGE_FAULTS /* core.h: the reading helpers of 5.4 */
#include "core.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define EVENTS 8192
#define CHAIN 4       /* the one who acts, and its ancestors */
#define PATH 360      /* of longer paths both ends are told */
#define HALF (PATH / 2)
#define LONGEST 1024  /* TRACE_CGROUP_PATH_LEN */
#define COMM 16

enum { BPF_MAP_TYPE_QUEUE = 22 };
static long (*bpf_map_push_elem)(void *map, const void *value, u64 flags) = (void *)87;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;

enum kind { MADE = 1, REMOVED = 2, FREED = 3 };

struct process {
	u64 began; /* CLOCK_MONOTONIC */
	s32 pid;   /* of the process, in the initial namespace; 0: none */
	u32 reserved;
	char comm[COMM]; /* of its first thread */
};
struct event {
	u64 at, id;
	u32 kind, length; /* of the path; if more than PATH, its first and its last HALF bytes are here */
	struct process chain[CHAIN];
	char path[PATH];
};
_Static_assert(sizeof(struct event) == 512, "known to the reader");

struct control {
	u64 hierarchy; /* whose events are wanted */
	u64 lost[4];   /* by kind: the queue was full */
};
struct scratch {
	struct event event;
	char whole[LONGEST];
};

struct { __uint(type, BPF_MAP_TYPE_QUEUE); __uint(max_entries, EVENTS); __uint(value_size, sizeof(struct event)); } QUEUE SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct control); } CONTROL SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct scratch); } SCRATCH SEC(".maps");

struct task_struct___actor {
	struct task_struct___actor *real_parent, *group_leader;
	s32 tgid;
	u64 start_time;
	char comm[COMM];
} RELOCATED;

INLINE void tell_chain(struct event *event)
{
	u64 task = bpf_get_current_task();
#pragma unroll
	for (int i = 0; i < CHAIN; i++) {
		struct process *process = &event->chain[i];
		/* A thread has its own name and start. */
		task = (u64)READ(struct task_struct___actor, task, group_leader);
		process->pid = READ(struct task_struct___actor, task, tgid);
		process->began = READ(struct task_struct___actor, task, start_time);
		process->comm[0] = 0;
		read_kernel(process->comm, COMM, task + OFFSET(struct task_struct___actor, comm));
		task = (u64)READ(struct task_struct___actor, task, real_parent);
	}
}

INLINE int tell(u64 *ctx, enum kind kind)
{
	u32 zero = 0;
	u64 cgroup = ctx[0], path = ctx[1];
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	struct scratch *scratch = bpf_map_lookup_elem(&SCRATCH, &zero);
	if (!control || !scratch)
		return 0;
	u64 root = (u64)READ(struct cgroup, cgroup, root);
	if ((u64)READ(struct cgroup_root, root, hierarchy_id) != control->hierarchy)
		return 0;

	struct event *event = &scratch->event;
	u64 kn = (u64)READ(struct cgroup, cgroup, kn), id = 0;
	LEARN(id, OFFSET, struct kernfs_node, id);
	LEARN(id, OFFSET, struct kernfs_node___union, id);
	event->id = read_word(kn + id);
	event->at = bpf_ktime_get_ns();
	event->kind = kind;
	long length = read_string(scratch->whole, LONGEST, path);
	length = length > 0 ? length - 1 : 0;
	event->length = length;
	if (length <= PATH) {
		read_kernel(event->path, PATH, path);
	} else {
		read_kernel(event->path, HALF, path);
		read_kernel(event->path + HALF, HALF, path + length - HALF);
	}
	/* What is freed at last is freed by a kernel thread. */
	if (kind != FREED)
		tell_chain(event);
	if (bpf_map_push_elem(&QUEUE, event, 0))
		control->lost[kind]++;
	return 0;
}

SEC("raw_tp/cgroup_mkdir") int made(u64 *ctx) { return tell(ctx, MADE); }
SEC("raw_tp/cgroup_rmdir") int removed(u64 *ctx) { return tell(ctx, REMOVED); }
SEC("raw_tp/cgroup_release") int freed(u64 *ctx) { return tell(ctx, FREED); }
