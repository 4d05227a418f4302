/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The wait ledger: for each thread how long it ran, waited for a core, was throttled or blocked; and for each wait, who had that
 * core meanwhile. Only sums stay in memory.
 *
 * - Each thread has a slot with its state and sums, in one cache line. Time in a state is booked when the state ends; the reader
 *   adds what is still open.
 * - Each core remembers who ran on it, in three rings: each change of party, who ran at each point of a 4 ms grid, and of a 67 ms
 *   grid. When a wait ends, those who ran meanwhile are charged. Short waits are summed and charged when they reach
 *   control.charge_from: so there are at most seconds waited / charge_from walks.
 * - A party is a process's threads that compete alike (cgroup, class, priority). Processes younger than a second are a party by
 *   parent, name and cgroup, so that a fork storm is one.
 * - The reader calls the time between two of its looks a turn. A wait that spans several is charged to each in part.
 *
 * tp_btf (since 5.5, here with a helper of 5.9) reads the kernel's structs directly; with RAW, raw tracepoints and copies, for
 * older kernels. SMALL: without the coarse rings and the table that sums per walk, for the verifier of 5.4. */
#ifdef RAW
#define PAGE_FAULTS /* core.h: the reading helpers of 5.4 */
#endif
#include "core.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define SLOTS_PER_BLOCK 128
#define COLD_PER_BLOCK 512
#define BLOCKS 512 /* x 128 slots of 64 bytes: 4 MB */
#define SLOT_COUNT (BLOCKS * SLOTS_PER_BLOCK)
#define RING 128
/* How far a walk goes back in each ring: the verifier follows each step, and loading waits for it. */
#ifdef SMALL
#define STEPS 16
#else
#define STEPS 48
#define GRID_STEPS 48
#define WIDE_STEPS RING
#endif
#define GRID 22 /* 2^22 ns: no multiple of the tick, so that what runs at every tick is not always or never met */
#define WIDE_GRID 26 /* 128 entries reach back 8.6 s at least */
#define SUMS 32
#define FRAMES 24
#define COMM 16
#define LONG_BLOCK 1000000ull /* ns: shorter ones are summed without their stack */
#define YOUNG 1000000000ull /* ns */
#define REFRESH_MS 64
#define TIMED 64 /* one run in so many is timed */
#define LONGEST_TIMED 20000 /* ns: what is longer was the hypervisor's */
#define UNTIMED 50 /* ns of a run before its clock is read and after */

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_PERCPU_ARRAY = 6, BPF_MAP_TYPE_STACK_TRACE = 7 };
enum { BPF_NOEXIST = 1, BPF_F_FAST_STACK_CMP = 1 << 9, BPF_F_REUSE_STACKID = 1 << 10 };
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_get_current_comm)(void *to, u32 size) = (void *)16;
#ifdef RAW
static long (*bpf_get_stackid)(void *ctx, void *map, u64 flags) = (void *)27;
#else
static long (*bpf_get_task_stack)(void *task, void *to, u32 size, u64 flags) = (void *)141;
#endif

/* Runners that are no party. */
enum { IDLE = 0, UNKNOWN = 1, OTHERS = 2, FIRST_PARTY = 4 };
enum { NONE, RUNNING, WAITING, SLEEPING, BLOCKED, THROTTLED };
enum { SHORT_LIVED = 1, SECOND_WAY = 2 };

struct slot {
	u32 tid, party;
	u64 since; /* the present state */
	u64 ran, waited;
	u32 runs, waits;
	u32 debt; /* waited, not charged yet */
	u32 longest; /* wait in its turn, in 1.024 us */
	u16 refreshed, core;
	u8 state, epoch, turn, flags;
	s32 stack; /* RAW: where it blocked */
	u32 born; /* tells two threads with the same tid apart */
};
/* What few threads have. */
struct cold { u64 throttled, blocked; };
struct slots { struct slot slot[SLOTS_PER_BLOCK]; };
/* When each block last got a thread: the reader need not look at those that are empty and stay so. */
struct used { u32 turn[BLOCKS]; };
struct colds { struct cold cold[COLD_PER_BLOCK]; };

struct run { u64 start; u32 party, reserved; }; /* until the next one's start */
struct ring { u32 head, last; struct run run[RING]; };
struct core {
	u64 switched; /* when the thread that runs came */
	u64 start; /* since when its party has the core; 0: nothing seen yet */
	u32 party, tid;
	u32 epoch, number;
	struct ring each, grid, wide;
	struct { u64 ns; u32 party, reserved; } sum[SUMS];
};
struct party {
	u32 pid, parent; /* pid 0: short-lived */
	u64 cgroup;
	char comm[COMM], parent_comm[COMM];
	u8 policy, rt_priority; signed char nice; u8 kernel;
	u32 ended;
	/* Of threads that ended, or that are another party now. */
	u64 ran, waited, throttled, blocked, runs, waits;
};
struct charge { u32 tid, victim, runner; u16 core, turn; };
struct block { u32 tid, party; u64 stack; u32 turn, reserved; };
struct blocked { u64 ns, longest; u64 times; char waker[COMM]; u64 frame[FRAMES]; };
struct control {
	u64 charge_from;
	u64 epoch_start; /* since when every switch is seen */
	u64 turn_start;
	u32 turn, unified;
	u32 epoch; /* 1 to 255 */
	u32 crowded;
};
_Static_assert(sizeof(struct slot) == 64 && sizeof(struct party) == 104 && sizeof(struct charge) == 16, "known to the reader");
_Static_assert(sizeof(struct block) == 24 && sizeof(struct blocked) == 40 + 8 * FRAMES && sizeof(struct control) == 40, "known to the reader");
_Static_assert(sizeof(struct ring) == 8 + 16 * RING && sizeof(struct core) == 32 + 3 * sizeof(struct ring) + 16 * SUMS, "known to the reader");
struct scratch { u64 frame[FRAMES]; struct blocked blocked; };

/* Blocks of slots as values: one system call reads many. */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, BLOCKS); __type(key, u32); __type(value, struct slots); } SLOTS SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct used); } USED SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SLOT_COUNT / COLD_PER_BLOCK); __type(key, u32); __type(value, struct colds); } COLD SEC(".maps");
/* The loader makes it as large as the machine. */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 512); __type(key, u32); __type(value, struct core); } CORES SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 8192); __type(key, u32); __type(value, struct party); } PARTIES SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16384); __type(key, struct charge); __type(value, u64); } CHARGES SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1024); __type(key, struct block); __type(value, struct blocked); } BLOCKED_AT SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct control); } CONTROL SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct scratch); } SCRATCH SEC(".maps");
#ifdef RAW
struct { __uint(type, BPF_MAP_TYPE_STACK_TRACE); __uint(max_entries, 1024); __uint(key_size, 4); __uint(value_size, 8 * FRAMES); } STACKS SEC(".maps");
#endif

/* Threads that were blocked before we looked. The reader removes those that were no longer, when it had looked. */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1024); __type(key, u32); __type(value, u32); } BLOCKED_BEFORE SEC(".maps");

/* What should be rare. */
enum { WALKS, NO_SLOT, EVICTED, NO_PARTY_ROOM, UNBOOKED_NS, RUNNING_AT_SWITCH_IN, NOT_RUNNING_AT_SWITCH_OUT, NO_BLOCK_ROOM, TIMED_NS, COUNTS };
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, COUNTS); __type(key, u32); __type(value, u64); } COUNT SEC(".maps");
INLINE void count(u32 what, u64 n)
{
	u64 *counted = bpf_map_lookup_elem(&COUNT, &what);
	if (counted)
		*counted += n;
}

/* What these programs cost, for the reader to bound it. Which runs are timed is up to the clock, so as to need no counter. */
INLINE void time_run(u64 began)
{
	if ((began >> 6) % TIMED)
		return;
	u64 took = bpf_ktime_get_ns() - began + UNTIMED;
	count(TIMED_NS, took > LONGEST_TIMED ? LONGEST_TIMED : took);
}

/* The kernel's types. */
struct thread_info { u32 cpu; } RELOCATED; /* 5.16 on x86 */
struct cfs_rq { s32 throttle_count; } RELOCATED;
struct sched_entity { struct cfs_rq *cfs_rq; } RELOCATED;
struct css_set___both { struct cgroup_subsys_state *subsys[1]; struct cgroup *dfl_cgrp; } RELOCATED;
struct task_struct___waits {
	struct thread_info thread_info;
	u32 __state; /* 5.14 */
	u8 throttled; /* 6.18: each task is throttled by itself */
	struct sched_entity se;
	s32 pid, tgid, static_prio;
	u32 flags, policy, rt_priority;
	u64 start_time;
	struct task_struct___waits *real_parent, *group_leader;
	struct css_set___both *cgroups;
	char comm[COMM];
} RELOCATED;
struct task_struct___old { long state; u32 cpu; } RELOCATED;
enum cgroup_subsys_id___cpu { cpu_cgrp_id = 1 };
#define TASK(task, field) READ(struct task_struct___waits, task, field)
#ifdef RAW
#define HOT(task, field) TASK(task, field)
#define ON(tracepoint) SEC("raw_tp/" tracepoint)
#else
#define HOT(task, field) ((task)->field)
#define ON(tracepoint) SEC("tp_btf/" tracepoint)
#endif
typedef struct task_struct___waits *task_ptr;

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000
#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_DEAD 0x80
#define TASK_NOLOAD 0x400
#define DEFAULT_PRIO 120

/* Not the tracepoint's argument: 5.18 brought it. */
INLINE u32 state_of(task_ptr task)
{
	if (EXISTS(struct task_struct___waits, __state))
		return HOT(task, __state);
	return READ(struct task_struct___old, task, state);
}

INLINE u32 core_of(task_ptr task)
{
	if (EXISTS(struct task_struct___waits, thread_info.cpu))
		return HOT(task, thread_info.cpu);
	return READ(struct task_struct___old, task, cpu);
}

/* The wait that follows is its quota's. */
INLINE int is_throttled(task_ptr task)
{
	if (EXISTS(struct task_struct___waits, throttled))
		return HOT(task, throttled);
	if (!EXISTS(struct cfs_rq, throttle_count))
		return 0;
	struct cfs_rq *queue = TASK(task, se.cfs_rq);
	return READ(struct cfs_rq, queue, throttle_count) > 0;
}

INLINE struct slot *slot_at(u32 index)
{
	u32 block = index / SLOTS_PER_BLOCK;
	struct slots *slots = bpf_map_lookup_elem(&SLOTS, &block);
	return slots ? ELEMENT(slots->slot, index) : 0;
}

INLINE u32 second_way(u32 tid) { return (tid * 0x9E3779B1u) >> 16; }

INLINE struct cold *cold_of(struct slot *slot)
{
	u32 index = slot->flags & SECOND_WAY ? second_way(slot->tid) : slot->tid & (SLOT_COUNT - 1), block = index / COLD_PER_BLOCK;
	struct colds *colds = bpf_map_lookup_elem(&COLD, &block);
	return colds ? ELEMENT(colds->cold, index) : 0;
}

/* A thread that ends or becomes another party leaves its sums with the party it was. */
INLINE void fold(struct slot *slot, u32 ended)
{
	struct party *party = bpf_map_lookup_elem(&PARTIES, &slot->party);
	struct cold *cold = cold_of(slot);
	if (party) {
		__sync_fetch_and_add(&party->ran, slot->ran);
		__sync_fetch_and_add(&party->waited, slot->waited);
		__sync_fetch_and_add(&party->runs, slot->runs);
		__sync_fetch_and_add(&party->waits, slot->waits);
		if (ended)
			__sync_fetch_and_add(&party->ended, 1);
		if (cold && (cold->throttled || cold->blocked)) {
			__sync_fetch_and_add(&party->throttled, cold->throttled);
			__sync_fetch_and_add(&party->blocked, cold->blocked);
		}
	}
	if (cold)
		cold->throttled = cold->blocked = 0;
	slot->ran = slot->waited = 0;
	slot->runs = slot->waits = slot->longest = 0;
}

/* Two places for each tid. Only a sleeping thread's is taken. */
static __attribute__((noinline)) struct slot *new_slot(u32 tid)
{
	u32 zero = 0, flags = 0, index = tid & (SLOT_COUNT - 1);
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	struct used *used = bpf_map_lookup_elem(&USED, &zero);
	struct slot *slot = slot_at(index);
	if (slot && slot->tid && slot->state != NONE && slot->state != SLEEPING) {
		index = second_way(tid);
		slot = slot_at(index);
		flags = SECOND_WAY;
	}
	if (!slot || !control || !used)
		return 0;
	if (slot->tid && slot->state != NONE && slot->state != SLEEPING) {
		control->crowded = 1;
		count(NO_SLOT, 1);
		return 0;
	}
	u32 block = index / SLOTS_PER_BLOCK;
	*ELEMENT(used->turn, block) = control->turn + 1;
	if (slot->tid) {
		fold(slot, 0);
		count(EVICTED, 1);
	}
	__builtin_memset(slot, 0, sizeof(*slot));
	slot->tid = tid;
	slot->flags = flags;
	return slot;
}

INLINE struct slot *known_slot(u32 tid)
{
	struct slot *slot = slot_at(tid & (SLOT_COUNT - 1));
	if (!slot || slot->tid == tid)
		return slot;
	slot = slot_at(second_way(tid));
	return slot && slot->tid == tid ? slot : 0;
}

/* What was known before a pause is forgotten. */
INLINE struct slot *slot_of(u32 tid, struct control *control)
{
	struct slot *slot = known_slot(tid);
	if (!slot)
		slot = new_slot(tid);
	if (slot && slot->epoch != (u8)control->epoch) {
		slot->epoch = control->epoch;
		slot->state = NONE;
		slot->debt = 0;
	}
	return slot;
}

INLINE u64 cgroup_of(task_ptr task, struct control *control)
{
	u64 set = (u64)TASK(task, cgroups), group, node;
	if (control->unified)
		group = (u64)READ(struct css_set___both, set, dfl_cgrp);
	else {
		u64 state = read_word(set + OFFSET(struct css_set___both, subsys) + 8 * ENUM_VALUE(enum cgroup_subsys_id___cpu, cpu_cgrp_id));
		group = (u64)READ(struct cgroup_subsys_state, state, cgroup);
	}
	node = (u64)READ(struct cgroup, group, kn);
	u64 id = 0;
	LEARN(id, OFFSET, struct kernfs_node, id);
	LEARN(id, OFFSET, struct kernfs_node___union, id);
	return read_word(node + id);
}

INLINE void read_name(char to[COMM], u64 task) { read_string(to, COMM, task + OFFSET(struct task_struct___waits, comm)); }

/* Who it is: looked up at most every 67 ms, and after exec. */
static __attribute__((noinline)) int identify(struct slot *slot, u64 of, u64 now)
{
	u32 zero = 0;
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	if (!slot || !control)
		return 0;
	task_ptr task = (task_ptr)of;
	struct party party = {};
	u64 leader = (u64)TASK(task, group_leader), parent = 0;
	slot->flags &= ~SHORT_LIVED;
	if (now - TASK(leader, start_time) < YOUNG) {
		parent = (u64)TASK(leader, real_parent);
		party.parent = TASK(parent, tgid);
		slot->flags |= SHORT_LIVED;
	} else
		party.pid = TASK(task, tgid);
	read_name(party.comm, leader);
	party.cgroup = cgroup_of(task, control);
	party.policy = TASK(task, policy);
	party.rt_priority = TASK(task, rt_priority);
	party.nice = TASK(task, static_prio) - DEFAULT_PRIO;
	party.kernel = (TASK(task, flags) & PF_KTHREAD) != 0;
	u64 *comm = (u64 *)party.comm, hash = ((u64)party.pid ^ (u64)party.parent << 32) * 0x9E3779B97F4A7C15ull;
	hash = (hash ^ comm[0]) * 0xff51afd7ed558ccdull;
	hash ^= hash >> 32;
	hash = (hash ^ comm[1] ^ (u64)party.policy << 48 ^ (u64)party.rt_priority << 56 ^ (u64)(u8)party.nice << 40) * 0xc4ceb9fe1a85ec53ull;
	hash ^= hash >> 29;
	hash = (hash ^ party.cgroup) * 0x9E3779B97F4A7C15ull;
	u32 id = (u32)(hash >> 32) | FIRST_PARTY;
	if (id == slot->party)
		return 0;
	if (slot->party)
		fold(slot, 0);
	slot->party = id;
	if (bpf_map_lookup_elem(&PARTIES, &id))
		return 0;
	if (parent)
		read_name(party.parent_comm, (u64)TASK(parent, group_leader));
	if (bpf_map_update_elem(&PARTIES, &id, &party, BPF_NOEXIST) == -7 /* E2BIG */)
		count(NO_PARTY_ROOM, 1);
	return 0;
}

INLINE void refresh(struct slot *slot, task_ptr task, u64 now)
{
	u16 ms = now >> 20;
	if (slot->party && (u16)(ms - slot->refreshed) < REFRESH_MS)
		return;
	slot->refreshed = ms;
	identify(slot, (u64)task, now);
}

INLINE void book(struct charge *key, u64 ns)
{
	u64 *known = bpf_map_lookup_elem(&CHARGES, key);
	if (known) {
		__sync_fetch_and_add(known, ns);
		return;
	}
	if (!bpf_map_update_elem(&CHARGES, key, &ns, BPF_NOEXIST))
		return;
	/* Full, or another core was faster. Then the party's threads together. */
	u32 tid = key->tid;
	key->tid = 0;
	known = bpf_map_lookup_elem(&CHARGES, key);
	if (known)
		__sync_fetch_and_add(known, ns);
	else if (bpf_map_update_elem(&CHARGES, key, &ns, BPF_NOEXIST))
		count(UNBOOKED_NS, ns);
	key->tid = tid;
}
#define BOOK(party, ns) do { key.runner = (party); book(&key, (ns) * scale >> 10); } while (0)

#ifdef SMALL
#define ADD(who, ns) BOOK(who, ns)
#else
/* Sums by party first: two places, then the smaller of the two gives way to OTHERS. */
#define ADD(who, ns_) do { \
	u32 who_ = (who), at_ = who_ ^ who_ >> 9; \
	typeof(&mine->sum[0]) sum_ = ELEMENT(mine->sum, at_), other_ = ELEMENT(mine->sum, at_ + 1); \
	if (sum_->ns && sum_->party != who_) { \
		if (!other_->ns || other_->party == who_) \
			sum_ = other_; \
		else { \
			if (other_->ns < sum_->ns) \
				sum_ = other_; \
			others += sum_->ns; \
			sum_->ns = 0; \
		} \
	} \
	sum_->party = who_; \
	sum_->ns += (ns_); } while (0)
#endif
#define WALK(ring_, steps) do { \
	u32 head_ = core->ring_.head; \
	for (u32 i = 0; i < (steps); i++) { \
		if (right <= from) \
			break; \
		head_--; \
		struct run *run_ = ELEMENT(core->ring_.run, head_); \
		u64 start_ = run_->start; \
		if (!start_) \
			break; \
		if (start_ >= right) \
			continue; \
		if (start_ < from) \
			start_ = from; \
		ADD(run_->party, right - start_); \
		right = start_; \
	} } while (0)

/* Books `debt` to those who had the core from `since` to now, as far as that is in this turn. */
static __attribute__((noinline)) int charge(struct slot *slot, u32 number, u64 since, u64 now, u64 debt)
{
	u32 zero = 0, own = bpf_get_smp_processor_id();
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	struct core *core = bpf_map_lookup_elem(&CORES, &number), *mine = bpf_map_lookup_elem(&CORES, &own);
	if (!slot || !control || !core || !mine || now <= since)
		return 0;
	u64 from = since, right = now;
#ifndef SMALL
	u64 others = 0;
#endif
	if (control->turn_start > from) {
		/* The reader has charged the part before. */
		u64 told = control->turn_start - from;
		from = control->turn_start;
		if (now <= from)
			return 0;
		debt = debt > told ? debt - told : 0;
	}
	u64 scale = (debt << 10) / (now - from);
	struct charge key = { .tid = slot->flags & SHORT_LIVED ? 0 : slot->tid, .victim = slot->party, .core = number, .turn = control->turn };
	if (core->start && core->start < right) { /* who has it now */
		u64 start = core->start < from ? from : core->start;
		ADD(core->party, right - start);
		right = start;
	}
	WALK(each, STEPS);
#ifndef SMALL
	WALK(grid, GRID_STEPS);
	WALK(wide, WIDE_STEPS);
#endif
	if (right > from)
		BOOK(UNKNOWN, right - from);
#ifndef SMALL
	if (others)
		BOOK(OTHERS, others);
	for (u32 i = 0; i < SUMS; i++) {
		typeof(&mine->sum[0]) sum = ELEMENT(mine->sum, i);
		u64 ns = sum->ns;
		if (!ns)
			continue;
		sum->ns = 0;
		BOOK(sum->party, ns);
	}
#endif
	count(WALKS, 1);
	return 0;
}

/* With where it stood and who woke it. */
static __attribute__((noinline)) int book_block(struct slot *slot, u64 now)
{
	u32 zero = 0;
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	struct scratch *scratch = bpf_map_lookup_elem(&SCRATCH, &zero);
	if (!slot || !control || !scratch)
		return 0;
	u64 ns = now - slot->since, in_turn = ns;
	if (control->turn_start > slot->since)
		in_turn = now > control->turn_start ? now - control->turn_start : 0;
	struct block key = { .tid = slot->flags & SHORT_LIVED ? 0 : slot->tid, .party = slot->party, .turn = control->turn };
#ifdef RAW
	key.stack = (u32)slot->stack;
#else
	for (u32 i = 0; i < FRAMES; i++)
		key.stack = (key.stack ^ scratch->frame[i]) * 0x9E3779B97F4A7C15ull;
#endif
	struct blocked *known = bpf_map_lookup_elem(&BLOCKED_AT, &key);
	if (!known) {
		__builtin_memset(&scratch->blocked, 0, sizeof(scratch->blocked));
#ifndef RAW
		__builtin_memcpy(scratch->blocked.frame, scratch->frame, sizeof(scratch->frame));
#endif
		bpf_map_update_elem(&BLOCKED_AT, &key, &scratch->blocked, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&BLOCKED_AT, &key);
	}
	if (!known) {
		count(NO_BLOCK_ROOM, 1);
		return 0;
	}
	__sync_fetch_and_add(&known->ns, in_turn);
	__sync_fetch_and_add(&known->times, 1);
	if (ns > known->longest)
		known->longest = ns;
	bpf_get_current_comm(known->waker, COMM);
	return 0;
}

INLINE void woken(task_ptr task, int is_new)
{
	u32 tid = HOT(task, pid), zero = 0;
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	if (!control || !control->epoch)
		return;
	struct slot *slot = slot_of(tid, control);
	if (!slot)
		return;
	/* It had not left the run queue. */
	if (!is_new && (slot->state == RUNNING || slot->state == WAITING || slot->state == THROTTLED))
		return;
	u64 now = bpf_ktime_get_ns();
	if (is_new) {
		/* Its tid may have been another's whose end was not seen. */
		if (slot->party)
			fold(slot, 0);
		slot->party = slot->debt = slot->state = 0;
		slot->born = now >> 10;
	}
	refresh(slot, task, now);
	if (!is_new && slot->state == NONE && bpf_map_lookup_elem(&BLOCKED_BEFORE, &tid)) {
		slot->state = BLOCKED;
		slot->since = control->epoch_start;
#ifdef RAW
		slot->stack = -1;
#endif
	}
	if (slot->state == BLOCKED) {
		struct cold *cold = cold_of(slot);
		if (cold)
			cold->blocked += now - slot->since;
		if (now - slot->since > LONG_BLOCK) {
#ifndef RAW
			struct scratch *scratch = bpf_map_lookup_elem(&SCRATCH, &zero);
			if (scratch) {
				/* It still stands where it blocked. */
				__builtin_memset(scratch->frame, 0, sizeof(scratch->frame));
				bpf_get_task_stack(task, scratch->frame, sizeof(scratch->frame), 0);
			}
#endif
			book_block(slot, now);
		}
	}
	slot->state = is_throttled(task) ? THROTTLED : WAITING;
	slot->since = now;
	slot->core = core_of(task);
	time_run(now);
}

ON("sched_wakeup") int wakeup(u64 *ctx)
{
	woken((task_ptr)ctx[0], 0);
	return 0;
}

ON("sched_wakeup_new") int wakeup_new(u64 *ctx)
{
	woken((task_ptr)ctx[0], 1);
	return 0;
}

ON("sched_migrate_task") int migrate(u64 *ctx)
{
	task_ptr task = (task_ptr)ctx[0];
	u32 to = ctx[1], zero = 0;
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	struct slot *slot = known_slot(HOT(task, pid));
	if (!control || !slot || slot->epoch != (u8)control->epoch || slot->state != WAITING || slot->core == to)
		return 0;
	u64 now = bpf_ktime_get_ns(), waited = now - slot->since;
	slot->waited += waited;
	charge(slot, slot->core, slot->since, now, waited + slot->debt);
	slot->debt = 0;
	slot->since = now;
	slot->core = to;
	time_run(now);
	return 0;
}

ON("sched_process_exec") int exec(u64 *ctx)
{
	task_ptr task = (task_ptr)ctx[0];
	struct slot *slot = known_slot(HOT(task, pid));
	if (slot)
		slot->refreshed -= REFRESH_MS;
	return 0;
}

INLINE void push(struct ring *ring, u64 start, u32 party)
{
	struct run *run = ELEMENT(ring->run, ring->head);
	ring->head++;
	run->start = start;
	run->party = party;
	ring->last = party;
}

/* Who had the core until now becomes part of its past. */
INLINE void close_run(struct core *core, u64 now)
{
	u64 start = core->start;
	push(&core->each, start, core->party);
#ifndef SMALL
	if (start >> GRID == now >> GRID)
		return;
	if (core->grid.last != core->party || !core->grid.head)
		push(&core->grid, ((start >> GRID) + 1) << GRID, core->party);
	if (start >> WIDE_GRID != now >> WIDE_GRID && (core->wide.last != core->party || !core->wide.head))
		push(&core->wide, ((start >> WIDE_GRID) + 1) << WIDE_GRID, core->party);
#endif
}

INLINE void leaves(u64 *ctx, struct core *core, task_ptr prev, u32 tid, u64 now, struct control *control)
{
	struct slot *slot = slot_of(tid, control);
	if (!slot)
		return;
	if (slot->state != RUNNING && core->start)
		count(NOT_RUNNING_AT_SWITCH_OUT, 1);
	if (core->start && core->tid != tid) {
		/* The switch to it was not seen, which happens (6.18: from some threads of pid 1, always). It came after the last one
		 * that was seen; what that thread ran is not known, and is taken for short. */
		refresh(slot, prev, now);
		if (slot->state == WAITING && slot->since < core->switched) {
			slot->waited += core->switched - slot->since;
			slot->waits++;
		}
		if (core->start < core->switched)
			close_run(core, core->switched);
		core->start = core->switched;
		core->party = slot->party;
		slot->runs++;
	}
	if (!core->start) {
		/* It has been running since before we looked. */
		refresh(slot, prev, now);
		core->start = core->switched = control->epoch_start;
		core->party = slot->party;
		slot->runs++;
	}
	/* By the core's clock, not by the slot's: whatever happened to the slot meanwhile, the thread had the core. */
	slot->ran += now - core->switched;
	slot->since = now;
	slot->core = core->number;
	u32 state = state_of(prev);
	if (ctx[0] || !state)
		slot->state = is_throttled(prev) ? THROTTLED : WAITING;
	else if (state & TASK_DEAD) {
		fold(slot, 1);
		slot->state = NONE;
		slot->tid = slot->party = 0;
	} else if (state & TASK_UNINTERRUPTIBLE && !(state & TASK_NOLOAD)) {
		slot->state = BLOCKED;
#ifdef RAW
		slot->stack = bpf_get_stackid(ctx, &STACKS, BPF_F_FAST_STACK_CMP | BPF_F_REUSE_STACKID);
#endif
	} else
		slot->state = SLEEPING;
}

ON("sched_switch") int sched_switch(u64 *ctx)
{
	task_ptr prev = (task_ptr)ctx[1], next = (task_ptr)ctx[2];
	u32 zero = 0, number = bpf_get_smp_processor_id(), left = HOT(prev, pid), tid = HOT(next, pid), party = IDLE;
	struct control *control = bpf_map_lookup_elem(&CONTROL, &zero);
	struct core *core = bpf_map_lookup_elem(&CORES, &number);
	if (!core || !control || !control->epoch)
		return 0;
	u64 now = bpf_ktime_get_ns(), waited = 0, since = 0;
	core->number = number;
	if (core->epoch != control->epoch) {
		core->epoch = control->epoch;
		core->start = core->each.head = core->grid.head = core->wide.head = 0;
		core->each.run[RING - 1].start = core->grid.run[RING - 1].start = core->wide.run[RING - 1].start = 0;
	}
	if (left)
		leaves(ctx, core, prev, left, now, control);
	else if (!core->start || core->tid) {
		if (core->start && core->start < core->switched)
			close_run(core, core->switched);
		core->start = core->start ? core->switched : control->epoch_start;
		core->party = IDLE;
	}
	struct slot *slot = tid ? slot_of(tid, control) : 0;
	if (slot) {
		refresh(slot, next, now);
		party = slot->party;
		if (slot->state == WAITING)
			since = slot->since;
		else if (slot->state == NONE && !control->crowded)
			since = control->epoch_start; /* no wake-up was seen: it has waited since before we looked */
		else if (slot->state == THROTTLED) {
			struct cold *cold = cold_of(slot);
			if (cold)
				cold->throttled += now - slot->since;
		} else if (slot->state == RUNNING)
			count(RUNNING_AT_SWITCH_IN, 1);
		if (since && since < now)
			waited = now - since;
		slot->state = RUNNING;
		slot->since = now;
		slot->core = number;
		slot->runs++;
	}
	if (core->start && party != core->party)
		close_run(core, now);
	if (!core->start || party != core->party) {
		core->start = now;
		core->party = party;
	}
	core->switched = now;
	core->tid = tid;
	if (waited && slot) {
		u64 debt = slot->debt + waited;
		u32 length = waited >> 10;
		slot->waited += waited;
		slot->waits++;
		if (slot->turn != (u8)control->turn) {
			slot->turn = control->turn;
			slot->longest = 0;
		}
		if (length > slot->longest)
			slot->longest = length;
		if (debt > control->charge_from) {
			charge(slot, number, since, now, debt);
			debt = 0;
		}
		slot->debt = debt;
	}
	time_run(now);
	return 0;
}
