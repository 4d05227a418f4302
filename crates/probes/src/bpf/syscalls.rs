//! The bpf(2) and perf_event_open(2) calls needed to load and run programs.

use std::ffi::{CStr, c_char, c_long};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn,
    bpf_prog_type, perf_event_attr, perf_event_sample_format, perf_sw_ids, perf_type_id,
};

/// What a program is loaded as.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Plain(bpf_prog_type),
    /// At a tracepoint, with the kernel's types: the BTF id of the tracepoint's type.
    Traced(u32),
}

/// All zeros: fields a call does not use or an older kernel does not know must be zero (kernel/bpf/syscall.c: CHECK_ATTR).
fn no_attributes() -> bpf_attr {
    // SAFETY: a union of integers and arrays of integers; all-zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// # Safety
/// Pointers in `attributes` must stay valid during the call for what `command` does with them.
unsafe fn bpf(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<c_long> {
    // SAFETY: the kernel accesses at most the given size of the union; the caller vouches for the pointers in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as u32, attributes, size_of::<bpf_attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
/// As for [`bpf`], and `command` must return a new file descriptor.
unsafe fn bpf_fd(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: upheld by the caller.
    let fd = unsafe { bpf(command, attributes)? };
    // SAFETY: a new file descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sets the value of one key. Both must have the sizes the map was created with.
///
/// # Safety
/// The kernel reads as many bytes as the map's key and value sizes.
pub(super) unsafe fn update_map(map: BorrowedFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attributes = no_attributes();
    // SAFETY: a struct of integers in an all-zero union.
    let element = unsafe { &mut attributes.__bindgen_anon_2 };
    element.map_fd = map.as_raw_fd() as u32;
    element.key = key.as_ptr() as u64;
    element.__bindgen_anon_1.value = value.as_ptr() as u64;
    // SAFETY: the slices outlive the call; the caller guarantees their sizes.
    unsafe { bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// The verifier treats the content as constant from now on.
pub(super) fn freeze_map(map: BorrowedFd) -> io::Result<()> {
    let mut attributes = no_attributes();
    attributes.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    // SAFETY: no pointers.
    unsafe { bpf(bpf_cmd::BPF_MAP_FREEZE, &mut attributes) }.map(drop)
}

/// Loads and verifies a program. A non-empty `log` receives the verifier's log, also on failure.
pub(super) fn load_program(
    kind: Kind,
    name: &str,
    instructions: &[bpf_insn],
    license: &CStr,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    let mut attributes = no_attributes();
    // SAFETY: a struct of integers in an all-zero union.
    let program = unsafe { &mut attributes.__bindgen_anon_3 };
    match kind {
        Kind::Plain(kind) => program.prog_type = kind as u32,
        Kind::Traced(tracepoint) => {
            program.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
            program.expected_attach_type = bpf_attach_type::BPF_TRACE_RAW_TP as u32;
            program.attach_btf_id = tracepoint;
        }
    }
    program.insns = instructions.as_ptr() as u64;
    program.insn_cnt = instructions.len() as u32;
    program.license = license.as_ptr() as u64;
    // The last byte stays zero. The kernel rejects other characters (bpf_obj_name_cpy).
    let plain = name.bytes().filter(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let room = program.prog_name.len() - 1;
    for (to, from) in program.prog_name[..room].iter_mut().zip(plain) {
        *to = from as c_char;
    }
    if !log.is_empty() {
        program.log_level = 1;
        program.log_buf = log.as_mut_ptr() as u64;
        program.log_size = log.len() as u32;
    }
    // SAFETY: instructions, the NUL-terminated license and log outlive the call, with the lengths given.
    unsafe { bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attributes) }
}

/// Runs the program once in this thread and returns its return value.
pub(super) fn run_program(program: BorrowedFd) -> io::Result<u32> {
    let mut attributes = no_attributes();
    attributes.test.prog_fd = program.as_raw_fd() as u32;
    // SAFETY: no pointers.
    unsafe { bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attributes)? };
    // SAFETY: the kernel has set this integer.
    Ok(unsafe { attributes.test.retval })
}

/// Without a name for programs that were loaded for their tracepoint.
pub(super) fn open_raw_tracepoint(program: BorrowedFd, tracepoint: Option<&CStr>) -> io::Result<OwnedFd> {
    let mut attributes = no_attributes();
    attributes.raw_tracepoint.name = tracepoint.map_or(0, |name| name.as_ptr() as u64);
    attributes.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    // SAFETY: the NUL-terminated name outlives the call; the command returns a file descriptor.
    unsafe { bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attributes) }
}

/// Runs the program on each minor page fault of this thread while the descriptor is open.
pub(super) fn open_own_page_faults(program: BorrowedFd) -> io::Result<OwnedFd> {
    // SAFETY: integers and unions of integers; all-zero is a valid value.
    let mut event: perf_event_attr = unsafe { std::mem::zeroed() };
    event.size = size_of::<perf_event_attr>() as u32;
    event.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
    event.config = perf_sw_ids::PERF_COUNT_SW_PAGE_FAULTS_MIN as u64;
    event.__bindgen_anon_1.sample_period = 1;
    event.sample_type = perf_event_sample_format::PERF_SAMPLE_RAW as u64;
    let (this_thread, any_cpu, no_group) = (0, -1, -1);
    // SAFETY: the kernel reads `size` bytes of the attributes.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw mut event, this_thread, any_cpu, no_group, PERF_FLAG_FD_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new file descriptor that nobody else owns.
    let event = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    for (request, argument) in [(PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()), (PERF_EVENT_IOC_ENABLE, 0)] {
        // SAFETY: both requests take an integer.
        if unsafe { libc::ioctl(event.as_raw_fd(), request as _, argument) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(event)
}
