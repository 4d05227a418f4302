//! Compressed records.

use std::io;

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// Limit for one unpacked record: a thousand times its maximal size, as much as gzip could reach. perf's own hold a ring buffer.
const MAX_UNPACKED: usize = 64 << 20;

/// perf compresses records as one zstd stream that is split into records.
#[derive(Default)]
pub(super) struct Unpacker {
    decoder: Option<Decoder<'static>>,
    out: Vec<u8>,
    /// The start of a record that continues in the next compressed one.
    pub carry: Vec<u8>,
}

impl Unpacker {
    /// After an error the next record must begin a new stream.
    pub fn unpack(&mut self, packed: &[u8], take: impl FnMut(&[u8])) -> io::Result<()> {
        let result = self.unpack_all(packed, take);
        if result.is_err() {
            self.decoder = None;
        }
        result
    }

    fn unpack_all(&mut self, packed: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            None => self.decoder.insert(Decoder::new()?),
        };
        self.out.resize(128 << 10, 0);
        let mut input = InBuffer::around(packed);
        let mut unpacked = 0;
        loop {
            let mut output = OutBuffer::around(&mut self.out[..]);
            let before = input.pos();
            decoder.run(&mut input, &mut output)?;
            let n = output.pos();
            take(&self.out[..n]);
            unpacked += n;
            if unpacked > MAX_UNPACKED {
                return Err(io::Error::other("unpacks to more than 64 MiB"));
            }
            if n == 0 && (input.pos() == packed.len() || input.pos() == before) {
                return Ok(());
            }
        }
    }
}
