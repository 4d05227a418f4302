//! Reads gzip-compressed files transparently.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Whether a file that begins with `bytes` is compressed.
pub fn is_gz(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Unpacks `from` if it is compressed. A truncated compressed file gives what is there; [`Unpacked::cut`] tells.
pub struct Unpacked<R: Read> {
    inner: Inner<R>,
    cut: bool,
}

enum Inner<R: Read> {
    Plain(BufReader<R>),
    Gz(Box<MultiGzDecoder<BufReader<R>>>),
}

impl<R: Read> Unpacked<R> {
    pub fn new(from: R) -> io::Result<Unpacked<R>> {
        let mut from = BufReader::with_capacity(64 << 10, from);
        let inner =
            if is_gz(from.fill_buf()?) { Inner::Gz(Box::new(MultiGzDecoder::new(from))) } else { Inner::Plain(from) };
        Ok(Unpacked { inner, cut: false })
    }

    /// The compressed data is truncated, or damaged from some point on.
    pub fn cut(&self) -> bool {
        self.cut
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Plain(from) => from.read(buffer),
            Inner::Gz(from) => match from.read(buffer) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData
                    ) =>
                {
                    self.cut = true;
                    Ok(0)
                }
                other => other,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut to = GzEncoder::new(Vec::new(), Compression::fast());
        to.write_all(text).expect("memory");
        to.finish().expect("memory")
    }

    #[test]
    fn plain_packed_and_two_members_read_alike() {
        let mut two = packed(b"hello ");
        two.extend(packed(b"world"));
        for bytes in [b"hello world".to_vec(), packed(b"hello world"), two] {
            let mut text = String::new();
            let mut from = Unpacked::new(&bytes[..]).expect("memory");
            from.read_to_string(&mut text).expect("text");
            assert_eq!((text.as_str(), from.cut()), ("hello world", false));
        }
    }

    #[test]
    fn a_cut_file_gives_what_is_there_and_says_so() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let bytes = packed(&text);
        let mut read = Vec::new();
        let mut from = Unpacked::new(&bytes[..bytes.len() / 2]).expect("memory");
        from.read_to_end(&mut read).expect("what is there");
        assert!(from.cut());
        assert!(read.len() > text.len() / 4 && text.starts_with(&read));
    }
}
