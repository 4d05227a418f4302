//! One sample record.

use super::attr::{Attr, sample_bit as bit};
use super::fields::Fields;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSample<'a> {
    pub ip: u64,
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub time: Option<u64>,
    pub core: Option<u32>,
    pub period: Option<u64>,
    pub cgroup: Option<u64>,
    /// Addresses as recorded, innermost first, eight bytes each.
    pub chain: &'a [u8],
    /// A tracepoint's data.
    pub raw: &'a [u8],
}

/// From here up (to -1), a number in a chain is no address but says in which mode the following ones ran (PERF_CONTEXT_MAX).
pub const CONTEXT: u64 = -4095i64 as u64;

impl<'a> RawSample<'a> {
    /// The chain of a record of this machine, without the mode of each address.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + use<'a> {
        let words = self.chain.chunks_exact(8).map(|word| word.try_into().map_or(CONTEXT, u64::from_ne_bytes));
        words.filter(|address| *address < CONTEXT)
    }
}

/// Parses a sample's body. `None` if it is shorter than it claims.
#[inline]
pub fn parse<'a>(mut fields: Fields<'a>, attr: &Attr) -> Option<RawSample<'a>> {
    let has = |wanted: u64| attr.sample_type & wanted != 0;
    let mut sample = RawSample::default();
    if has(bit::IDENTIFIER) {
        fields.u64()?;
    }
    if has(bit::IP) {
        sample.ip = fields.u64()?;
    }
    if has(bit::TID) {
        let (pid, tid) = (fields.u32()?, fields.u32()?);
        let known = |id: u32| Some(id).filter(|id| *id != u32::MAX);
        (sample.pid, sample.tid) = (known(pid), known(tid));
    }
    if has(bit::TIME) {
        sample.time = Some(fields.u64()?);
    }
    let skipped = attr.sample_type & (bit::ADDR | bit::ID | bit::STREAM_ID);
    fields.skip_words(u64::from(skipped.count_ones()))?;
    if has(bit::CPU) {
        sample.core = Some(fields.u32()?);
        fields.u32()?;
    }
    if has(bit::PERIOD) {
        sample.period = Some(fields.u64()?);
    }
    if has(bit::READ) {
        skip_read(&mut fields, attr.read_format)?;
    }
    if has(bit::CALLCHAIN) {
        let length = usize::try_from(fields.u64()?).ok()?.checked_mul(8)?;
        sample.chain = fields.bytes(length)?;
    }
    if has(bit::RAW) {
        let size = fields.u32()? as usize;
        sample.raw = fields.bytes(size)?;
    }
    if has(bit::CGROUP) {
        sample.cgroup = cgroup(fields, attr);
    }
    Some(sample)
}

fn skip_read(fields: &mut Fields<'_>, format: u64) -> Option<()> {
    let (times, per_value) = (u64::from((format & 3).count_ones()), 1 + u64::from((format & 0b1_0100).count_ones()));
    if format & 8 == 0 {
        return fields.skip_words(per_value + times);
    }
    let count = fields.u64()?;
    fields.skip_words(times.checked_add(count.checked_mul(per_value)?)?)
}

/// The cgroup's id follows all fields of variable length.
fn cgroup(mut fields: Fields<'_>, attr: &Attr) -> Option<u64> {
    let has = |wanted: u64| attr.sample_type & wanted != 0;
    if has(bit::BRANCH_STACK) {
        let count = fields.u64()?;
        fields.skip_words(count.checked_mul(3)?.checked_add(u64::from(attr.has_hw_index))?)?;
    }
    if has(bit::REGS_USER) && fields.u64()? != 0 {
        fields.skip_words(u64::from(attr.regs_user.count_ones()))?;
    }
    if has(bit::STACK_USER) {
        let size = usize::try_from(fields.u64()?).ok()?;
        if size > 0 {
            fields.bytes(size)?;
            fields.u64()?;
        }
    }
    let words = attr.sample_type & (bit::WEIGHT | bit::WEIGHT_STRUCT | bit::DATA_SRC | bit::TRANSACTION);
    fields.skip_words(u64::from(words.count_ones()))?;
    if has(bit::REGS_INTR) && fields.u64()? != 0 {
        fields.skip_words(u64::from(attr.regs_intr.count_ones()))?;
    }
    if has(bit::PHYS_ADDR) {
        fields.u64()?;
    }
    fields.u64()
}
