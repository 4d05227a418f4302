//! Our BPF objects, from committed bytes to running programs.
//!
//! aya's own loader parses all kernel types at each start (5.5 MB of BTF: 60 ms and 18 MB), needed or not. We keep only the types
//! that an object names. Parser, relocations and maps are still aya's (aya-obj); creating maps and loading programs is a handful
//! of bpf(2) calls. Programs carry no BTF of their own: none needs it, and old kernels reject BTF kinds they do not know.
//!
//! ```text
//! let standing = bpf::Standing::check(root)?;                        // or the reason
//! let types = bpf::KernelTypes::of_running_kernel(&[OBJECT]).map_err(|e| standing.no_btf(&e))?;
//! let object = bpf::Object::load(&types, OBJECT, &[("NODES", &nodes.to_ne_bytes())])?;
//! let ring: RingBuf<MapData> = object.map("OUT")?;
//! let attached = object.program("on_mkdir")?.attach_raw_tracepoint(c"cgroup_mkdir")?;
//! ```

mod blind;
pub(crate) mod committed;
mod kernel_file;
mod kernel_types;
mod locked_memory;
mod object;
mod program;
mod syscalls;

pub use blind::{Blind, Reason, Standing};
pub(crate) use blind::{CAP_PERFMON, CAP_SYS_ADMIN, effective_capabilities, is_confidential};
pub(crate) use committed::bpf_object;
pub use kernel_types::{KernelTypes, TracepointTypes};
pub use object::{Failure, Object};
pub use program::{Attached, Program};
