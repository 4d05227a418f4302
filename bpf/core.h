/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What our programs need of the BPF and CO-RE interfaces and of the kernel's types. Self-contained: rebuilding takes clang alone.
 *
 * The structs name only the fields that we read. Their offsets here mean nothing: the loader replaces each with the running
 * kernel's, found by name in its BTF. A struct whose name ends in ___something stands for the kernel's struct without that
 * ending, as other versions declare it. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define RELOCATED __attribute__((preserve_access_index))
#define __uint(name, value) int(*name)[value]
#define __type(name, type_) type_ *name

/* Where a field lies, how large it is, whether it exists, on the running kernel. Constants to the verifier. */
#define OFFSET(type, field) ((u64)__builtin_preserve_field_info(((type *)0)->field, 0))
#define SIZE(type, field) ((u64)__builtin_preserve_field_info(((type *)0)->field, 1))
#define EXISTS(type, field) __builtin_preserve_field_info(((type *)0)->field, 2)
/* A number that the compiler must not take out of a loop and keep on the stack: verifiers before 5.13 or so forget what they
 * knew of numbers there. Bound it right after this. */
#define HERE(number) ({ u64 here_ = (number); asm volatile("" : "+r"(here_)); here_; })
/* An element of an array with a power of two of them: the pointer, which a verifier does remember, instead of the index. */
#define ELEMENT(array, index) ({ \
	typeof(&(array)[0]) element_ = &(array)[HERE(index) & (sizeof(array) / sizeof((array)[0]) - 1)]; \
	asm volatile("" : "+r"(element_)); \
	element_; })
/* For fields that some kernels lack. The compiler may move an OFFSET before the test that guards it, and the loader makes an
 * offset that does not exist an invalid instruction: so take them once, where nothing can be moved, and keep them. */
#define LEARN(to, info, type, field) do { \
	if (EXISTS(type, field)) { \
		u64 learnt_ = info(type, field); \
		asm volatile("" : "+r"(learnt_)); \
		(to) = learnt_; \
	} } while (0)
#define ENUM_VALUE(type, value) ((u64)__builtin_preserve_enum_value(*(typeof(type) *)value, 1))

enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PROG_ARRAY = 3, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_RB_NO_WAKEUP = 1 };

/* Helpers by their number (include/uapi/linux/bpf.h). */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_tail_call)(void *ctx, void *programs, u32 index) = (void *)12;
static u64 (*bpf_get_current_task)(void) = (void *)35;
#ifdef PAGE_FAULTS /* the helpers that know kernel from user addresses came with 5.5 */
static long (*read_kernel)(void *to, u32 size, u64 from) = (void *)4;
static long (*read_string)(void *to, u32 size, u64 from) = (void *)45;
#else
static long (*read_kernel)(void *to, u32 size, u64 from) = (void *)113;
static long (*read_string)(void *to, u32 size, u64 from) = (void *)115;
static u64 (*bpf_jiffies64)(void) = (void *)118;
static void *(*bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
#endif

INLINE u64 read_word(u64 from)
{
	u64 word = 0;
	read_kernel(&word, sizeof(word), from);
	return word;
}

/* One field of one word at most; 0 if the address cannot be read. */
#define READ(type, base, field) ({ \
	typeof(((type *)0)->field) read_ = 0; \
	read_kernel(&read_, sizeof(read_), (u64)(base) + OFFSET(type, field)); \
	read_; })

struct list_head { struct list_head *next, *prev; } RELOCATED;

/* kernel/cgroup */
typedef struct { s64 counter; } RELOCATED atomic_long_t;
struct percpu_ref_data { atomic_long_t count; } RELOCATED;
struct percpu_ref { unsigned long percpu_count_ptr; struct percpu_ref_data *data; } RELOCATED;
struct percpu_ref___inline { atomic_long_t count; } RELOCATED; /* before 5.10 */
struct cgroup;
struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct percpu_ref refcnt;
	struct list_head sibling, children;
	u32 flags;
	u64 serial_nr;
	struct cgroup_subsys_state *parent;
} RELOCATED;
struct cgroup_subsys_state___inline { struct percpu_ref___inline refcnt; } RELOCATED;
struct kernfs_node { const char *name; u64 id; } RELOCATED;
union kernfs_node_id { u64 id; } RELOCATED;
struct kernfs_node___union { union kernfs_node_id id; } RELOCATED; /* before 5.5 */
struct cgroup_root { s32 hierarchy_id; } RELOCATED;
struct cgroup { struct cgroup_subsys_state self; struct kernfs_node *kn; struct cgroup_root *root; } RELOCATED;
struct css_set { struct cgroup_subsys_state *subsys[1]; } RELOCATED;
struct task_struct { struct css_set *cgroups; } RELOCATED;
enum cgroup_subsys_id { memory_cgrp_id = 4 };

/* mm/memcontrol.c */
struct page_counter { atomic_long_t usage; } RELOCATED;
typedef struct { s32 counter; } RELOCATED atomic_t;
typedef struct { atomic_t refs; } RELOCATED refcount_t;
struct mem_cgroup_id { refcount_t ref; } RELOCATED;
struct lru_gen_folio { struct list_head folios[1]; struct list_head lists[1]; long nr_pages[1]; } RELOCATED;
struct lruvec { struct list_head lists[5]; struct lru_gen_folio lrugen; } RELOCATED;
struct mem_cgroup_per_node { struct lruvec lruvec; unsigned long lru_zone_size[25]; } RELOCATED;
struct mem_cgroup {
	struct cgroup_subsys_state css;
	struct mem_cgroup_id id;
	struct page_counter kmem;
	u64 socket_pressure; /* unsigned long before 6.18: as large where we run */
	struct mem_cgroup_per_node *nodeinfo[1];
} RELOCATED;

/* A page on a list, and the file it belongs to. */
struct address_space;
struct folio { struct list_head lru; struct address_space *mapping; unsigned long memcg_data; u32 _nr_pages; } RELOCATED; /* 5.16 */
struct folio___6_1 { u32 _folio_nr_pages; } RELOCATED; /* 5.19 to 6.14 */
struct page { struct list_head lru; struct address_space *mapping; unsigned long memcg_data; u32 compound_nr; u8 compound_order; } RELOCATED;
struct page___5_10 { struct mem_cgroup *mem_cgroup; } RELOCATED; /* to 5.10 */
enum pageflags { PG_head = 16 };
struct hlist_node { struct hlist_node *next; } RELOCATED;
struct hlist_head { struct hlist_node *first; } RELOCATED;
struct file_system_type { const char *name; } RELOCATED;
struct super_block { u32 s_dev; unsigned long s_magic; struct file_system_type *s_type; } RELOCATED;
struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
	u32 i_nlink, i_rdev;
	s64 i_size;
	struct hlist_head i_dentry;
} RELOCATED;
struct address_space { struct inode *host; } RELOCATED;
struct qstr { const unsigned char *name; } RELOCATED;
struct dentry { struct dentry *d_parent; struct qstr d_name; union { struct hlist_node d_alias; } d_u; } RELOCATED;
