//! Reads numbers and strings from a record, never beyond its end.

#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    data: &'a [u8],
    /// The file was written on a machine with the other byte order.
    swap: bool,
}

impl<'a> Fields<'a> {
    #[inline]
    pub fn new(data: &'a [u8], swap: bool) -> Fields<'a> {
        Fields { data, swap }
    }

    #[inline]
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.data.split_at_checked(n)?;
        self.data = rest;
        Some(taken)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        let n = u64::from_ne_bytes(self.bytes(8)?.try_into().ok()?);
        Some(if self.swap { n.swap_bytes() } else { n })
    }

    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        let n = u32::from_ne_bytes(self.bytes(4)?.try_into().ok()?);
        Some(if self.swap { n.swap_bytes() } else { n })
    }

    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        let n = u16::from_ne_bytes(self.bytes(2)?.try_into().ok()?);
        Some(if self.swap { n.swap_bytes() } else { n })
    }

    #[inline]
    pub fn skip_words(&mut self, n: u64) -> Option<()> {
        self.bytes(usize::try_from(n).ok()?.checked_mul(8)?).map(|_| ())
    }

    /// A string terminated by a zero byte or by the end of the data.
    pub fn string(&mut self) -> &'a [u8] {
        let end = memchr::memchr(0, self.data).unwrap_or(self.data.len());
        let text = &self.data[..end];
        self.data = &self.data[self.data.len().min(end + 1)..];
        text
    }

    /// perf's `do_write_string`: a length, the text padded with zeros.
    pub fn counted_string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let mut text = Fields::new(self.bytes(length)?, self.swap);
        Some(text.string())
    }
}
