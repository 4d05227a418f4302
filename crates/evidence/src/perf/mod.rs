//! Records of the kernel's perf events (include/uapi/linux/perf_event.h), from its rings and from perf's files: samples, and
//! between them names of threads, memory mappings and losses.

pub mod attr;
pub mod fields;
pub mod sample;

pub use attr::{Attr, sample_bit};
pub use fields::Fields;
pub use sample::RawSample;

/// Kinds of records (from 64 on, perf's own: tools/lib/perf/include/perf/event.h).
pub mod kind {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const LOST_SAMPLES: u32 = 13;
    pub const KSYMBOL: u32 = 17;
    pub const CGROUP: u32 = 19;
    pub const FIRST_OF_PERF: u32 = 64;
    pub const HEADER_ATTR: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const FINISHED_ROUND: u32 = 68;
    pub const AUXTRACE: u32 = 71;
    pub const HEADER_FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
    pub const LAST_OF_PERF: u32 = 100;
}

/// The size of `struct perf_event_header`: kind, misc, size.
pub const HEADER: usize = 8;

const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const MISC_COMM_EXEC: u16 = 1 << 13;
/// `PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER`.
const KSYMBOL_GONE: u16 = 1;

#[inline]
pub fn record_header(record: &[u8], swap: bool) -> (u32, u16, usize) {
    let mut fields = Fields::new(record, swap);
    (fields.u32().unwrap_or(0), fields.u16().unwrap_or(0), usize::from(fields.u16().unwrap_or(0)))
}

/// A record other than a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideRecord<'a> {
    Mapped {
        pid: u32,
        start: u64,
        length: u64,
        file_offset: u64,
        build_id: Option<&'a [u8]>,
        inode: Option<u64>,
        path: &'a [u8],
    },
    Named {
        pid: u32,
        tid: u32,
        name: &'a [u8],
        by_exec: bool,
    },
    Began {
        pid: u32,
        tid: u32,
        parent_pid: u32,
        parent_tid: u32,
    },
    Ended {
        pid: u32,
        tid: u32,
    },
    /// Records dropped because the ring was full.
    Lost(u64),
    /// Samples dropped because the ring was full, counted at the end.
    LostSamples(u64),
    /// From this time on, the kernel throttled sampling because it took too long.
    Throttled(u64),
    Unthrottled(u64),
    Cgroup {
        id: u64,
        path: &'a [u8],
    },
    /// Kernel code that was loaded (a BPF program, a trampoline) or unloaded.
    KernelCode {
        start: u64,
        length: u64,
        name: &'a [u8],
        is_gone: bool,
    },
    /// Context switches and the like.
    Other,
}

impl<'a> SideRecord<'a> {
    /// `body` is the record's own part ([`Attr::own_part`]). `None` if it is shorter than its kind.
    pub fn parse(kind: u32, misc: u16, body: &'a [u8], swap: bool) -> Option<SideRecord<'a>> {
        let mut fields = Fields::new(body, swap);
        Some(match kind {
            kind::MMAP | kind::MMAP2 => {
                let (pid, _tid) = (fields.u32()?, fields.u32()?);
                let (start, length, file_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let (mut build_id, mut inode) = (None, None);
                if kind == kind::MMAP2 {
                    let mut file = Fields::new(fields.bytes(24)?, swap);
                    if misc & MISC_MMAP_BUILD_ID != 0 {
                        let id = file.bytes(24)?;
                        build_id = Some(&id[4..4 + usize::from(id[0]).min(20)]);
                    } else {
                        file.u64()?; // the device
                        inode = file.u64().filter(|inode| *inode != 0);
                    }
                    fields.u64()?; // protection and flags
                }
                SideRecord::Mapped { pid, start, length, file_offset, build_id, inode, path: fields.string() }
            }
            kind::COMM => {
                let (pid, tid) = (fields.u32()?, fields.u32()?);
                SideRecord::Named { pid, tid, name: fields.string(), by_exec: misc & MISC_COMM_EXEC != 0 }
            }
            kind::FORK => {
                let (pid, parent_pid, tid, parent_tid) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
                SideRecord::Began { pid, tid, parent_pid, parent_tid }
            }
            kind::EXIT => {
                let (pid, _parent, tid) = (fields.u32()?, fields.u32()?, fields.u32()?);
                SideRecord::Ended { pid, tid }
            }
            kind::LOST => {
                fields.u64()?; // the event
                SideRecord::Lost(fields.u64()?)
            }
            kind::LOST_SAMPLES => SideRecord::LostSamples(fields.u64()?),
            kind::THROTTLE => SideRecord::Throttled(fields.u64()?),
            kind::UNTHROTTLE => SideRecord::Unthrottled(fields.u64()?),
            kind::CGROUP => SideRecord::Cgroup { id: fields.u64()?, path: fields.string() },
            kind::KSYMBOL => {
                let (start, length) = (fields.u64()?, fields.u32()?);
                let (_kind, flags) = (fields.u16()?, fields.u16()?);
                let is_gone = flags & KSYMBOL_GONE != 0;
                SideRecord::KernelCode { start, length: u64::from(length), name: fields.string(), is_gone }
            }
            _ => SideRecord::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn halves(halves: &[u32]) -> Vec<u8> {
        halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
    }

    const CHAINS: u64 = sample_bit::TID | sample_bit::TIME | sample_bit::CALLCHAIN;

    fn sample(pid: u32, time: u64, chain: &[u64]) -> Vec<u8> {
        [halves(&[pid, pid.wrapping_add(1)]), words(&[time, chain.len() as u64]), words(chain)].concat()
    }

    fn parse(bytes: &[u8]) -> Option<RawSample<'_>> {
        let attr = Attr { sample_type: CHAINS, ..Attr::default() };
        sample::parse(Fields::new(bytes, false), &attr)
    }

    #[test]
    fn records_as_the_kernel_writes_them() {
        let bytes = sample(42, 7, &[-128i64 as u64, 0xffff_ffff_8100_0010, 0xffff_ffff_8100_0020]);
        let found = parse(&bytes).expect("a sample");
        assert_eq!((found.pid, found.tid, found.time), (Some(42), Some(43), Some(7)));
        assert_eq!(found.addresses().collect::<Vec<_>>(), [0xffff_ffff_8100_0010, 0xffff_ffff_8100_0020]);
        let said = |kind, body: &[u8]| format!("{:?}", SideRecord::parse(kind, 0, body, false));
        assert_eq!(said(kind::LOST, &words(&[1, 9])), "Some(Lost(9))");
        assert_eq!(said(kind::LOST, &words(&[1])), "None");
        assert_eq!(said(kind::THROTTLE, &words(&[5, 1, 1])), "Some(Throttled(5))");
        let comm = [halves(&[7, 8]), b"cat\0\0\0\0\0".to_vec()].concat();
        let named = SideRecord::Named { pid: 7, tid: 8, name: b"cat", by_exec: false };
        assert_eq!(SideRecord::parse(kind::COMM, 0, &comm, false), Some(named), "threads have their own names");
        // With sample_id_all, a record ends with process, time and core.
        let attr = Attr { sample_type: CHAINS | sample_bit::CPU, sample_id_all: true, ..Attr::default() };
        let whole = [comm.clone(), halves(&[7, 8]), words(&[99]), halves(&[3, 0])].concat();
        assert_eq!(attr.own_part(&whole), comm);
        assert_eq!((attr.time_of(kind::COMM, &whole, false), attr.core_of(&whole, false)), (Some(99), Some(3)));
        assert_eq!(attr.time_of(kind::SAMPLE, &bytes, false), Some(7));
    }

    #[test]
    fn a_chain_that_claims_to_be_longer_than_its_record() {
        for length in [4, u64::MAX / 8 + 1, u64::MAX] {
            let mut bytes = sample(1, 1, &[1, 2, 3]);
            bytes[16..24].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(parse(&bytes), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(kind in 0u32..25, misc: u16, swap: bool, sample_type: u64,
                                          bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            SideRecord::parse(kind, misc, &bytes, swap);
            let attr = Attr { sample_type, sample_id_all: true, ..Attr::default() };
            attr.time_of(kind, &bytes, swap);
            attr.core_of(&bytes, swap);
            if let Some(sample) = sample::parse(Fields::new(&bytes, swap), &attr) {
                prop_assert!(sample.addresses().count() * 8 <= bytes.len());
            }
        }
    }
}
