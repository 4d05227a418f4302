//! Symbols packed into a stripped file (`.gnu_debugdata`, "MiniDebugInfo", as Fedora and its kin have it).

use std::io::{self, Write};

use super::image::Image;

/// Packed symbols are some megabytes at most.
const MAX_UNPACKED: usize = 64 << 20;

pub(super) fn unpack(packed: &[u8]) -> Option<Image> {
    let mut out = Bounded(Vec::new());
    lzma_rs::xz_decompress(&mut io::BufReader::new(packed), &mut out).ok()?;
    Some(Image::Memory(out.0))
}

struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_UNPACKED {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
