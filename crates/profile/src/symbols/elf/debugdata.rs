//! Symbols packed into a stripped file (`.gnu_debugdata`, "MiniDebugInfo", as on Fedora).

use std::io::{self, Write};

use super::image::Image;

/// Packed symbols are a few megabytes at most.
const MAX_UNPACKED: u64 = 64 << 20;

pub(super) fn unpack(packed: &[u8], most: u64) -> Option<Image> {
    let mut out = Bounded { bytes: Vec::new(), most: most.min(MAX_UNPACKED) as usize };
    lzma_rs::xz_decompress(&mut io::BufReader::new(packed), &mut out).ok()?;
    Some(Image::Memory(out.bytes))
}

struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
