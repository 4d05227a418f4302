//! Compressed records.

use std::io;

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// perf compresses records as one zstd stream that is cut into records.
#[derive(Default)]
pub(super) struct Unpacker {
    decoder: Option<Decoder<'static>>,
    out: Vec<u8>,
    /// The beginning of a record whose end is in the next compressed one.
    pub carry: Vec<u8>,
}

impl Unpacker {
    pub fn unpack(&mut self, packed: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            None => self.decoder.insert(Decoder::new()?),
        };
        self.out.resize(128 << 10, 0);
        let mut input = InBuffer::around(packed);
        loop {
            let mut output = OutBuffer::around(&mut self.out[..]);
            let before = input.pos();
            decoder.run(&mut input, &mut output)?;
            let n = output.pos();
            take(&self.out[..n]);
            if n == 0 && (input.pos() == packed.len() || input.pos() == before) {
                return Ok(());
            }
        }
    }
}
