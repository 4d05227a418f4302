/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Memory cgroups that were removed but live on, and the files whose pages keep them.
 *
 * Two programs, each a small state machine that user space drives until it says DONE:
 *   walk   goes through the tree of memory css's, the dead included, and tells the dead ones and their ancestors' names;
 *   files  goes through the LRU lists of dead memcgs that user space names, and tells each folio's size and file.
 *
 * They are never attached to anything that others do. One source, two objects:
 *   (default)      raw tracepoint programs run by BPF_PROG_TEST_RUN, answers in a ring buffer: from 5.10;
 *   PAGE_FAULTS    perf_event programs that run on page faults of our own thread, answers in an array map: from 5.4.
 *
 * No lock is taken. Each run is one RCU read-side section of at most STEPS * 34 steps. A css is unlinked (list_del_rcu) before
 * it is freed after a grace period, so that within one run every css we reach stays readable, and its `next` leads on
 * (kernel/cgroup/cgroup.c: css_release_work_fn, css_next_child). Between two runs anything may go: see resume(). */
#include "core.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/linux/cgroup-defs.h; unchanged since 4.7 */
#define CSS_ONLINE (1 << 1)
#define CSS_RELEASED (1 << 2)
#define CSS_DYING (1 << 4)

#define STEPS 4       /* steps of one program; it then calls itself, at most 33 times. Eight walk 5 % faster and take the verifier twice as long */
#define DEPTH 64      /* levels of cgroups; deeper ones are counted, not entered. A power of two */
#define NAME 256      /* kernfs and file names have at most 255 bytes */
#define LISTS 5       /* NR_LRU_LISTS */
#define ZONES 6       /* MAX_NR_ZONES is 5 at most so far */
#define GENERATIONS 4 /* MAX_NR_GENS */
#define ITEMS 512     /* memcgs that user space names at a time */
#define CSS_BYTES 256 /* enough for a css up to serial_nr on every kernel we know. A power of two */
#define FILE_DEPTH 40 /* directories of one file's path */

/* Set before loading; the verifier then knows it (from 5.5). */
const volatile u32 NODES = 1;

/* What a slot tells. */
enum { NOTHING = 0, DEAD = 1, ANCESTOR = 2, FOLIO = 3, PATH = 4, MORE = 5 };

struct memcg_slot {
	u32 kind, depth;
	u64 serial, parent_serial, css, id;
	s64 references; /* -1: still counted per CPU, so unknown */
	u64 file, swap_backed, unevictable; /* pages on the lists */
	u64 kernel_charged;                 /* pages, with all descendants; 0 where the lists explain all references */
	u64 pressure_jiffies;
	u32 flags, directory_lives;
	u64 swap; /* pages, its own */
	char name[NAME];
};
struct file_slot {
	u32 kind, item;
	u64 mapping; /* 0: none; the lowest bit: anonymous memory */
	u64 inode, size, magic, dentry;
	u32 pages, list, device, block_device, links;
	u32 new_file; /* the fields above and the name are set, PATH slots follow if dentry is not 0 */
	u32 end;      /* of a path: LAST_*, 0 if more follows */
	u32 unsure;   /* the folio moved to another file while we looked */
	u64 reserved[3];
	char name[NAME]; /* of the file system type, or of one path component */
};
enum { LAST_ROOT = 1, LAST_SAME_DIRECTORY = 2, LAST_CUT = 3 };
union slot { struct memcg_slot memcg; struct file_slot file; };
struct batch { union slot slots[STEPS]; };

struct place { u64 css, serial; };

/* Offsets of fields that some kernels lack; 0 where they do, or where it is the first. */
struct layout {
	u64 reference_data, reference_count; /* in the css: to a pointer at the count, or to the count itself (before 5.10) */
	u64 kernfs_id, kmem, socket_pressure;
	u64 generation_sizes, generation_sizes_bytes; /* in a lruvec */
	u64 generation_lists, generation_lists_bytes;
	u64 folio_lru, folio_mapping, folio_memcg; /* in struct folio, or struct page before 5.16 */
	u64 folio_pages, next_page_pages, next_page_order;
	u64 data_count; /* of the references, behind reference_data */
	u64 swap_references;
};

enum { START = 0, ARRIVE = 1, BACK = 2, SEEK = 3, DONE = 4, LOOK = 5, NEXT_NUMA = 6, CLIMB = 7, LOST = 8 };
struct walk {
	u32 state;
	u32 unified;   /* the memory controller is in the v2 hierarchy */
	s32 depth;     /* of `at.css`; 0 is the root */
	s32 named;     /* ancestors above this depth must be named: a dead one is below them */
	u64 runs, visited, live, dead, leaving, released, too_deep, resumed, jiffies, unreadable;
	u32 node, looking; /* NEXT_NUMA: the lists of one dead memcg on the further nodes */
	struct layout layout;
	struct place at;
	u64 kernfs_node;
	u64 sought;              /* SEEK, LOST: the first child with a larger serial */
	struct place path[DEPTH]; /* the ancestors of `at`, and itself once visited */
	/* Too large for the stack. What cannot be read is zero. */
	u8 head[CSS_BYTES];
	u64 zone_sizes[LISTS * ZONES];
	s64 generation_sizes[ZONES];
};

enum { NEXT_ITEM = 0, NEXT_NODE = 1, NEXT_LIST = 2, ON_FOLIO = 3, NAMING = 4, FINISHED = 5 };
struct item { u64 css, serial, pages; };
struct files {
	u32 state;
	u32 count, item, node, list, left, per_list, named;
	u64 runs, folios, torn, gone;
	u64 pages; /* of this item, not seen yet */
	u64 again; /* this folio was told before, but not the whole name of its file */
	struct layout layout;
	u64 memcg, lruvec, head, folio, next, mapping, dentry, directory, last_directory;
	struct item items[ITEMS];
};

/* What user space and a program say to each other about one run. */
struct control { u32 armed, batches, state, reserved; };
enum { WALK_PROGRAM = 0, FILES_PROGRAM = 1 };

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, u32); __type(value, struct control); } CONTROL SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct walk); } WALK SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct files); } FILES SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 2); __type(key, u32); __type(value, u32); } AGAIN SEC(".maps");

#ifdef PAGE_FAULTS
#define PROGRAM SEC("perf_event")
/* User space takes one value with each call: so let it hold many batches. */
struct batches { struct batch batches[4]; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 9); __type(key, u32); __type(value, struct batches); } OUT SEC(".maps");
#else
#define PROGRAM SEC("raw_tp/cgroup_mkdir")
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 1 << 18); } OUT SEC(".maps");
#endif

INLINE struct batch *take_batch(struct control *control)
{
#ifdef PAGE_FAULTS
	u32 number = control->batches, index = number / 4;
	struct batches *batches = bpf_map_lookup_elem(&OUT, &index);
	if (!batches)
		return 0;
	struct batch *batch = ELEMENT(batches->batches, number);
#else
	struct batch *batch = bpf_ringbuf_reserve(&OUT, sizeof(struct batch), 0);
	if (!batch)
		return 0;
#endif
	control->batches++;
	return batch;
}

INLINE void give_batch(struct batch *batch)
{
#ifndef PAGE_FAULTS
	bpf_ringbuf_submit(batch, BPF_RB_NO_WAKEUP);
#endif
}

/* Any page fault of ours runs the program; it shall act only when user space waits for it. */
INLINE int armed(struct control *control)
{
#ifdef PAGE_FAULTS
	return control->armed;
#else
	return 1;
#endif
}

/* The end of a run. With page faults user space first takes the batches, then resets their number. */
INLINE u32 stop(struct control *control, u32 state)
{
	control->state = state;
	control->armed = 0;
#ifndef PAGE_FAULTS
	control->batches = 0;
#endif
	return state;
}

INLINE void learn_layout(struct layout *l)
{
	LEARN(l->reference_data, OFFSET, struct cgroup_subsys_state, refcnt.data);
	LEARN(l->reference_count, OFFSET, struct cgroup_subsys_state___inline, refcnt.count);
	LEARN(l->data_count, OFFSET, struct percpu_ref_data, count);
	LEARN(l->kernfs_id, OFFSET, struct kernfs_node, id);
	LEARN(l->kernfs_id, OFFSET, struct kernfs_node___union, id);
	LEARN(l->kmem, OFFSET, struct mem_cgroup, kmem.usage);
	LEARN(l->swap_references, OFFSET, struct mem_cgroup, id.ref);
	LEARN(l->socket_pressure, OFFSET, struct mem_cgroup, socket_pressure);
	LEARN(l->generation_sizes, OFFSET, struct lruvec, lrugen.nr_pages);
	LEARN(l->generation_sizes_bytes, SIZE, struct lruvec, lrugen.nr_pages);
	LEARN(l->generation_lists, OFFSET, struct lruvec, lrugen.lists); /* until 6.2 */
	LEARN(l->generation_lists_bytes, SIZE, struct lruvec, lrugen.lists);
	LEARN(l->generation_lists, OFFSET, struct lruvec, lrugen.folios);
	LEARN(l->generation_lists_bytes, SIZE, struct lruvec, lrugen.folios);
	LEARN(l->folio_lru, OFFSET, struct page, lru);
	LEARN(l->folio_lru, OFFSET, struct folio, lru);
	LEARN(l->folio_mapping, OFFSET, struct page, mapping);
	LEARN(l->folio_mapping, OFFSET, struct folio, mapping);
	LEARN(l->folio_memcg, OFFSET, struct page___5_10, mem_cgroup);
	LEARN(l->folio_memcg, OFFSET, struct page, memcg_data);
	LEARN(l->folio_memcg, OFFSET, struct folio, memcg_data);
	LEARN(l->folio_pages, OFFSET, struct folio___6_1, _folio_nr_pages);
	LEARN(l->folio_pages, OFFSET, struct folio, _nr_pages);
	LEARN(l->next_page_pages, OFFSET, struct page, compound_nr);
	LEARN(l->next_page_order, OFFSET, struct page, compound_order);
}

/* The head of a css in one read: its lists, flags and serial number. */
#define CSS_HEAD (OFFSET(struct cgroup_subsys_state, serial_nr) + 8)
#define HEAD_WORD(head, offset) (*(u64 *)((head) + (HERE(offset) & (CSS_BYTES - 8))))
#define CSS_WORD(head, field) HEAD_WORD(head, OFFSET(struct cgroup_subsys_state, field))
#define CSS_FLAGS(head) (*(u32 *)((head) + (HERE(OFFSET(struct cgroup_subsys_state, flags)) & (CSS_BYTES - 4))))
#define CSS_OF_SIBLING(p) ((p) - OFFSET(struct cgroup_subsys_state, sibling))
#define CHILDREN_OF(css) ((css) + OFFSET(struct cgroup_subsys_state, children))

INLINE long read_css(u8 *head, u64 css)
{
	u64 bytes = HERE(CSS_HEAD);
	if (bytes > CSS_BYTES)
		bytes = CSS_BYTES;
	return read_kernel(head, bytes, css);
}

INLINE struct place *place_at(struct walk *w, s32 depth)
{
	return ELEMENT(w->path, depth);
}

/* Is this still the css that it was in an earlier run? Serial numbers are never given twice, and a css gets CSS_RELEASED
 * before it is unlinked and freed. */
INLINE int still_there(struct place *place)
{
	if (READ(struct cgroup_subsys_state, place->css, serial_nr) != place->serial)
		return 0;
	return !(READ(struct cgroup_subsys_state, place->css, flags) & CSS_RELEASED);
}

/* lru_zone_size[zones][LISTS]; pahole writes it as one dimension. */
INLINE void add_lists(struct walk *w, struct memcg_slot *slot, u64 per_node)
{
	u64 bytes = HERE(SIZE(struct mem_cgroup_per_node, lru_zone_size));
	if (bytes > sizeof(w->zone_sizes))
		bytes = sizeof(w->zone_sizes);
	read_kernel(w->zone_sizes, bytes, per_node + OFFSET(struct mem_cgroup_per_node, lru_zone_size));
#pragma clang loop unroll(full)
	for (int zone = 0; zone < ZONES; zone++) {
		u64 *z = w->zone_sizes + zone * LISTS;
		slot->swap_backed += z[0] + z[1];
		slot->file += z[2] + z[3];
		slot->unevictable += z[4];
	}
}

/* Multi-generational LRU keeps its own counts: nr_pages[GENERATIONS][anon, file][zones]. */
INLINE void add_generations(struct walk *w, struct memcg_slot *slot, u64 per_node)
{
	if (!EXISTS(struct lruvec, lrugen.nr_pages))
		return; /* spares the verifier the rest */
	u64 at = per_node + OFFSET(struct mem_cgroup_per_node, lruvec) + w->layout.generation_sizes;
	u64 row = w->layout.generation_sizes_bytes / (GENERATIONS * 2); /* bytes for the zones of one kind and generation */
	if (!row)
		return;
	s64 anonymous = 0, file = 0;
	for (int i = 0; i < GENERATIONS * 2; i++) {
		u64 bytes = HERE(row);
		if (bytes > sizeof(w->generation_sizes))
			bytes = sizeof(w->generation_sizes);
		read_kernel(w->generation_sizes, bytes, at + i * row);
		s64 *zone = w->generation_sizes; /* beyond the row it is always zero */
		s64 pages = zone[0] + zone[1] + zone[2] + zone[3] + zone[4] + zone[5];
		if (i & 1)
			file += pages;
		else
			anonymous += pages;
	}
	/* The kernel says that single counts can be below zero for a moment. */
	slot->file += file < 0 ? 0 : file;
	slot->swap_backed += anonymous < 0 ? 0 : anonymous;
}

INLINE void tell_name(struct walk *w, struct memcg_slot *slot, u64 node)
{
	u64 name = (u64)READ(struct kernfs_node, node, name);
	slot->id = read_word(node + w->layout.kernfs_id);
	slot->name[0] = 0;
	read_string(slot->name, NAME, name);
}

/* Time goes into waiting for memory: one dead memcg lies in a dozen cache lines that nobody else uses. So what does not depend on
 * another answer is asked for first, for the processor to wait for all of it at once. */
INLINE void tell_dead(struct walk *w, struct memcg_slot *slot, u8 *head, u64 css)
{
	u64 memcg = css - OFFSET(struct mem_cgroup, css);
	u64 cgroup = CSS_WORD(head, cgroup);
	read_word(memcg + OFFSET(struct mem_cgroup, nodeinfo));
	w->kernfs_node = (u64)READ(struct cgroup, cgroup, kn);
	slot->css = css;
	slot->flags = CSS_FLAGS(head);
	slot->references = -1;
	/* Lowest bits of percpu_count_ptr: 1 counted in one place, 2 killed. Only then is that count the whole. */
	if (CSS_WORD(head, refcnt.percpu_count_ptr) & 3) {
		if (w->layout.reference_data)
			slot->references = read_word(HEAD_WORD(head, w->layout.reference_data) + w->layout.data_count);
		else if (w->layout.reference_count)
			slot->references = HEAD_WORD(head, w->layout.reference_count);
	}
	/* Each page of swap that is charged to a memcg holds its id, and the last one lets it go. The id's own reference went when
	 * the memcg died (mm/memcontrol.c: mem_cgroup_css_offline). So this counts its own, without those of its descendants. */
	u32 swap = 0;
	if (w->layout.swap_references)
		read_kernel(&swap, sizeof(swap), memcg + w->layout.swap_references);
	slot->swap = swap;
	slot->pressure_jiffies = w->layout.socket_pressure ? read_word(memcg + w->layout.socket_pressure) : 0;
	slot->directory_lives = 0;
	/* On v2 the controller can be taken from a cgroup that lives on. */
	if (w->unified)
		slot->directory_lives = !!(READ(struct cgroup, cgroup, self.flags) & CSS_ONLINE);
}

INLINE void tell_pages(struct walk *w, struct memcg_slot *slot, u64 memcg, u32 node)
{
	u64 per_node = read_word(memcg + OFFSET(struct mem_cgroup, nodeinfo) + node * 8);
	slot->file = slot->swap_backed = slot->unevictable = 0;
	if (per_node) {
		add_lists(w, slot, per_node);
		add_generations(w, slot, per_node);
	}
	/* Mostly the pages on the lists account for all references; then the counter is not worth a cache line. */
	slot->kernel_charged = 0;
	if (w->layout.kmem && (NODES > 1 || slot->references > (s64)(slot->file + slot->swap_backed + slot->unevictable)))
		slot->kernel_charged = read_word(memcg + w->layout.kmem);
}

/* From our own memory css upwards. */
INLINE int start(struct walk *w)
{
	u64 set = (u64)READ(struct task_struct, bpf_get_current_task(), cgroups);
	u64 css = 0;
	u64 index = ENUM_VALUE(enum cgroup_subsys_id, memory_cgrp_id);
	read_kernel(&css, 8, set + OFFSET(struct css_set, subsys) + index * 8);
	if (!css)
		return 0;
	w->at.css = css;
	w->depth = 0;
	w->named = 0;
#ifndef PAGE_FAULTS
	w->jiffies = bpf_jiffies64();
#endif
	w->state = CLIMB;
	return 1;
}

INLINE void step_climb(struct walk *w)
{
	u64 css = w->at.css;
	u64 parent = (u64)READ(struct cgroup_subsys_state, css, parent);
	if (parent) {
		w->at.css = parent;
		return;
	}
	u64 cgroup = (u64)READ(struct cgroup_subsys_state, css, cgroup);
	w->unified = READ(struct cgroup_root, (u64)READ(struct cgroup, cgroup, root), hierarchy_id) == 0;
	w->state = ARRIVE;
}

/* Where the last run stopped may be gone by now. Then go on below the nearest ancestor that is there: siblings are in the order
 * of their serials (css_next_child relies on it), so the first with a larger one is the first not visited. Whatever was below
 * the one that is gone is gone, too, because a child holds its parent. */
INLINE void resume(struct walk *w)
{
	if (w->state == LOST || still_there(&w->at))
		return;
	if (w->state != SEEK) /* what was sought then still is */
		w->sought = w->at.serial;
	w->state = LOST;
}

INLINE void step_lost(struct walk *w)
{
	s32 depth = w->depth - 1;
	if (depth < 0) { /* cannot be: the root is always there */
		w->state = DONE;
		w->unreadable = 1;
		return;
	}
	struct place *above = place_at(w, depth);
	if (!still_there(above)) {
		w->sought = above->serial;
		w->depth = depth;
		return;
	}
	u64 first = (u64)READ(struct cgroup_subsys_state, above->css, children.next);
	w->resumed++;
	if (!first || first == CHILDREN_OF(above->css)) {
		w->at = *above;
		w->depth = depth;
		w->state = BACK;
	} else {
		w->at.css = CSS_OF_SIBLING(first);
		w->state = SEEK;
	}
}

INLINE void step(struct walk *w, struct memcg_slot *slot)
{
	u8 *head = w->head;
	u64 css = w->at.css;
	slot->kind = NOTHING;
	if (w->state == CLIMB) {
		step_climb(w);
		return;
	}
	if (w->state == LOST) {
		step_lost(w);
		return;
	}
	if (CSS_HEAD > CSS_BYTES || read_css(head, css) < 0) {
		w->state = DONE;
		w->unreadable = 1;
		return;
	}
	u64 serial = CSS_WORD(head, serial_nr);
	u32 flags = CSS_FLAGS(head);
	u32 state = w->state;
	s32 depth = w->depth;
	struct place *above = place_at(w, depth - 1);
	/* Not yet online is not dead: such a one is just being made. */
	int dead = (flags & CSS_DYING) && !(flags & (CSS_ONLINE | CSS_RELEASED));

	if (state == SEEK && serial > w->sought)
		state = w->state = ARRIVE;
	if (state == ARRIVE) {
		w->visited++;
		struct place *here = place_at(w, depth);
		here->css = css;
		here->serial = serial;
		if (dead)
			w->dead++;
		else if (flags & CSS_RELEASED)
			w->released++; /* unlinked in this very run */
		else if (flags & CSS_DYING)
			w->leaving++;
		else
			w->live++;
	}
	slot->serial = serial;
	slot->depth = depth;
	slot->parent_serial = above->serial;
	int tell = dead && (state == ARRIVE || (state == LOOK && serial == w->at.serial));
	if (tell) {
		slot->kind = DEAD;
		read_word(CSS_WORD(head, sibling.next)); /* the next one: let it come meanwhile */
		tell_dead(w, slot, head, css);
		w->named = depth;
		w->looking = state == LOOK;
		w->node = 0;
	}
	if (tell || state == NEXT_NUMA) {
		if (state == NEXT_NUMA)
			slot->kind = MORE;
		tell_pages(w, slot, css - OFFSET(struct mem_cgroup, css), w->node);
		if (tell)
			tell_name(w, slot, w->kernfs_node);
		w->node++;
		if (w->node < NODES) {
			/* A step for each node: a loop over them would be too much for the verifier. */
			w->state = NEXT_NUMA;
			return;
		}
		w->state = state = w->looking ? LOOK : ARRIVE;
	} else if (state == BACK && w->named > depth) {
		w->named = depth;
		/* Also one that is dead: it may have been alive when we came, and was not told then. */
		if (depth > 0) {
			slot->kind = ANCESTOR;
			tell_name(w, slot, (u64)READ(struct cgroup, CSS_WORD(head, cgroup), kn));
		}
	}
	if (state == LOOK) {
		w->state = DONE;
		return;
	}
	if (state == ARRIVE) {
		u64 child = CSS_WORD(head, children.next);
		if (child && child != CHILDREN_OF(css)) {
			if (depth < DEPTH - 1) {
				w->at.css = CSS_OF_SIBLING(child);
				w->depth = depth + 1;
				return;
			}
			w->too_deep++;
		}
	}
	if (depth <= 0) {
		w->state = DONE;
		return;
	}
	u64 next = CSS_WORD(head, sibling.next);
	if (next && next != CHILDREN_OF(above->css)) {
		w->at.css = CSS_OF_SIBLING(next);
		if (state == BACK)
			w->state = ARRIVE;
	} else {
		w->at.css = above->css;
		w->depth = depth - 1;
		w->state = BACK;
	}
}

PROGRAM int walk(void *ctx)
{
	u32 zero = 0, program = WALK_PROGRAM;
	struct walk *w = bpf_map_lookup_elem(&WALK, &zero);
	struct control *control = bpf_map_lookup_elem(&CONTROL, &program);
	if (!w || !control || !armed(control))
		return -1;
	if (control->batches == 0) {
		if (w->runs++ == 0)
			learn_layout(&w->layout);
		if (w->state == START) {
			if (!start(w))
				return -2;
		} else if (w->state != LOOK)
			resume(w);
	}
	struct batch *batch = take_batch(control);
	if (!batch)
		goto pause;
	for (int i = 0; i < STEPS; i++) {
		if (w->state != DONE)
			step(w, &batch->slots[i].memcg);
		else
			batch->slots[i].memcg.kind = NOTHING;
	}
	give_batch(batch);
	if (w->state != DONE)
		bpf_tail_call(ctx, &AGAIN, WALK_PROGRAM);
pause:
	/* No more calls, no more room, or done. */
	w->at.serial = READ(struct cgroup_subsys_state, w->at.css, serial_nr);
	return stop(control, w->state);
}

/* ---- the files ---- */

#define PAGE_STRUCT 64 /* bytes of a struct page */

/* The classic lists of a lruvec, then those of the multi-generational LRU. */
INLINE u64 list_at(struct files *f, u32 list)
{
	if (list < LISTS)
		return f->lruvec + OFFSET(struct lruvec, lists) + list * 16;
	u64 offset = (list - LISTS) * 16;
	return offset < f->layout.generation_lists_bytes ? f->lruvec + f->layout.generation_lists + offset : 0;
}

INLINE u32 pages_of(struct files *f, u64 folio)
{
	/* flags is the first word of struct page and of struct folio. */
	if (!(read_word(folio) & (1ULL << ENUM_VALUE(enum pageflags, PG_head))))
		return 1;
	u32 word = 0;
	if (f->layout.folio_pages) {
		read_kernel(&word, sizeof(word), folio + f->layout.folio_pages);
		return word;
	}
	u64 next = folio + PAGE_STRUCT;
	if (f->layout.next_page_pages) {
		read_kernel(&word, sizeof(word), next + f->layout.next_page_pages);
		return word;
	}
	u8 order = 0;
	read_kernel(&order, sizeof(order), next + f->layout.next_page_order);
	return 1U << (order & 31);
}

/* The folio may be truncated and its inode freed while we read; then it has another mapping now. */
INLINE u32 moved(struct files *f)
{
	return read_word(f->folio + f->layout.folio_mapping) != f->mapping;
}

INLINE void step_folio(struct files *f, struct file_slot *slot)
{
	u64 link = f->next;
	u64 at = link - f->layout.folio_lru;
	/* No lock is held: it may have left this list. Believe it only while it is charged to this memcg. */
	if ((read_word(at + f->layout.folio_memcg) & ~7ULL) != f->memcg) {
		f->again = 0;
		f->torn++;
		f->list++;
		f->state = NEXT_LIST;
		return;
	}
	u64 mapping = read_word(at + f->layout.folio_mapping);
	f->next = read_word(link);
	f->left--;
	f->folios++;
	slot->kind = FOLIO;
	slot->item = f->item;
	slot->list = f->list;
	slot->mapping = mapping;
	u32 pages = 0;
	if (!f->again) {
		pages = pages_of(f, at);
		if (!pages)
			pages = 1;
	}
	f->again = 0;
	f->pages -= pages < f->pages ? pages : f->pages;
	slot->pages = pages;
	slot->new_file = 0;
	slot->unsure = 0;
	if (!mapping || (mapping & 3) || mapping == f->mapping)
		return;
	f->mapping = mapping;
	f->folio = at;
	u64 inode = (u64)READ(struct address_space, mapping, host);
	u64 sb = (u64)READ(struct inode, inode, i_sb);
	slot->new_file = 1;
	slot->inode = READ(struct inode, inode, i_ino);
	slot->size = READ(struct inode, inode, i_size);
	slot->links = READ(struct inode, inode, i_nlink);
	slot->block_device = READ(struct inode, inode, i_rdev);
	slot->device = READ(struct super_block, sb, s_dev);
	slot->magic = READ(struct super_block, sb, s_magic);
	slot->name[0] = 0;
	read_string(slot->name, 32, (u64)READ(struct file_system_type, (u64)READ(struct super_block, sb, s_type), name));
	u64 alias = (u64)READ(struct inode, inode, i_dentry.first);
	slot->unsure = moved(f);
	slot->dentry = alias ? alias - OFFSET(struct dentry, d_u.d_alias) : 0;
	if (alias && !slot->unsure) {
		f->dentry = slot->dentry;
		f->named = 0;
		f->state = NAMING;
	}
}

/* One component of the path, the file's own name first. */
INLINE void step_name(struct files *f, struct file_slot *slot)
{
	u64 dentry = f->dentry;
	u64 parent = (u64)READ(struct dentry, dentry, d_parent);
	slot->kind = PATH;
	slot->end = 0;
	slot->unsure = 0;
	slot->name[0] = 0;
	read_string(slot->name, NAME, (u64)READ(struct dentry, dentry, d_name.name));
	if (f->named == 0)
		f->directory = parent;
	if (!parent || parent == dentry)
		slot->end = LAST_ROOT;
	else if (parent == f->last_directory)
		slot->end = LAST_SAME_DIRECTORY;
	else if (f->named >= FILE_DEPTH)
		slot->end = LAST_CUT;
	f->named++;
	f->dentry = parent;
	if (!slot->end)
		return;
	slot->unsure = moved(f);
	f->last_directory = slot->unsure || slot->end == LAST_CUT ? 0 : f->directory;
	f->state = ON_FOLIO;
}

INLINE int is_there(struct item *item)
{
	struct place place = { item->css, item->serial };
	return still_there(&place);
}

/* Between two runs memcgs, folios, inodes and dentries may be freed: take up nothing that was held by address alone. */
INLINE void resume_files(struct files *f)
{
	f->mapping = 0;
	f->last_directory = 0;
	if (f->state == NAMING) {
		/* From the folio on. A whole path has fewer steps than a run, so it is not cut again. */
		f->next = f->folio + f->layout.folio_lru;
		f->again = 1;
		f->left++;
		f->folios--;
		f->state = ON_FOLIO;
	}
	if (f->state != NEXT_ITEM && !is_there(ELEMENT(f->items, f->item))) {
		f->gone++;
		f->item++;
		f->again = 0;
		f->state = NEXT_ITEM;
	}
}

INLINE void step_files(struct files *f, struct file_slot *slot)
{
	slot->kind = NOTHING;
	if (f->state == NAMING) {
		step_name(f, slot);
		return;
	}
	if (f->state == ON_FOLIO) {
		if (f->again) {
			/* stay */
		} else if (!f->pages) {
			/* All that it holds was seen: its other lists are not worth their cache lines. */
			f->item++;
			f->state = NEXT_ITEM;
		} else if (f->next == f->head || !f->next || f->left == 0) {
			f->list++;
			f->state = NEXT_LIST;
		}
	}
	if (f->state == NEXT_ITEM) {
		u32 item = f->item;
		if (item >= f->count || item >= ITEMS) {
			f->state = FINISHED;
			return;
		}
		struct item *named = ELEMENT(f->items, item);
		if (!is_there(named)) {
			f->gone++;
			f->item++;
			return;
		}
		f->memcg = named->css - OFFSET(struct mem_cgroup, css);
		f->pages = named->pages;
		f->node = 0;
		f->state = NEXT_NODE;
	}
	if (f->state == NEXT_NODE) {
		u64 per_node = 0;
		if (f->node >= NODES) {
			f->item++;
			f->state = NEXT_ITEM;
			return;
		}
		read_kernel(&per_node, 8, f->memcg + OFFSET(struct mem_cgroup, nodeinfo) + f->node * 8);
		f->node++;
		if (!per_node)
			return;
		f->lruvec = per_node + OFFSET(struct mem_cgroup_per_node, lruvec);
		f->list = 0;
		f->state = NEXT_LIST;
	}
	if (f->state == NEXT_LIST) {
		for (int i = 0; i < 4; i++) {
			u32 list = f->list;
			u64 head = list_at(f, list);
			if (!head) {
				f->state = NEXT_NODE;
				return;
			}
			u64 first = read_word(head);
			if (first && first != head) {
				f->head = head;
				f->next = first;
				f->left = f->per_list;
				f->state = ON_FOLIO;
				break;
			}
			f->list = list + 1;
		}
	}
	if (f->state == ON_FOLIO)
		step_folio(f, slot);
}

PROGRAM int files(void *ctx)
{
	u32 zero = 0, program = FILES_PROGRAM;
	struct files *f = bpf_map_lookup_elem(&FILES, &zero);
	struct control *control = bpf_map_lookup_elem(&CONTROL, &program);
	if (!f || !control || !armed(control))
		return -1;
	if (control->batches == 0) {
		if (f->runs++ == 0)
			learn_layout(&f->layout);
		else
			resume_files(f);
	}
	struct batch *batch = take_batch(control);
	if (!batch)
		goto pause;
	for (int i = 0; i < STEPS; i++) {
		if (f->state != FINISHED)
			step_files(f, &batch->slots[i].file);
		else
			batch->slots[i].file.kind = NOTHING;
	}
	give_batch(batch);
	if (f->state != FINISHED)
		bpf_tail_call(ctx, &AGAIN, FILES_PROGRAM);
pause:
	return stop(control, f->state);
}
